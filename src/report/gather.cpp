// One rank after the other, so that ranks which hold the same take the memory of one.
#include "report/gather.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "answers/history.h"
#include "base/cancelled.h"
#include "base/text.h"
#include "compare/compare.h"
#include "read/bad_place.h"
#include "read/run_stream.h"

namespace trainmon::page {
namespace {

constexpr std::int64_t kClose = 24;       // steps on each side
constexpr std::int64_t kBytesOfCell = 8;  // of the page, at the least
constexpr std::array kStats = {Stat::norm,  Stat::min,  Stat::max,  Stat::mean, Stat::std,
                               Stat::zeros, Stat::nans, Stat::infs, Stat::count};

std::uint32_t count_of(std::int64_t count) {
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(count, 0, kMost));
}

// Mean and standard deviation are the norm's parts: their ratio gives both, for it loses no digits
// where one of them is small.
float balance_of(double mean, double deviation) {
  return narrowed(mean == 0.0 && deviation == 0.0 ? 0.0 : mean / deviation);
}

std::uint8_t share_of(double share) {
  constexpr double kWhole = 255.0;
  if (!(share > 0.0)) return 0;
  if (share >= 1.0) return 255;
  return static_cast<std::uint8_t>(std::clamp(std::round(share * kWhole), 1.0, kWhole - 1.0));
}

Cell cell_of(const ReadRow& row) {
  Cell cell;
  if ((row.flags & flag::kNotReady) != 0) {
    const float none = std::numeric_limits<float>::quiet_NaN();
    cell.value = cell.low = cell.high = cell.min = cell.max = cell.balance = none;
    cell.marks = mark::kDropped;
    return cell;
  }
  const auto of = [&](Stat stat) { return narrowed(derive(stat, row.state)); };
  cell.value = cell.low = cell.high = of(Stat::norm);
  cell.min = of(Stat::min);
  cell.max = of(Stat::max);
  cell.balance = balance_of(derive(Stat::mean, row.state), derive(Stat::std, row.state));
  cell.zeros = share_of(derive(Stat::zeros, row.state));
  cell.count = count_of(row.state.count);
  cell.nans = count_of(row.state.nans);
  cell.infs = count_of(row.state.pos_infs + row.state.neg_infs);
  if (row.state.nans > 0) cell.marks |= mark::kNan;
  if (cell.infs > 0) cell.marks |= mark::kInf;
  return cell;
}

Cell cell_of(double value) {
  Cell cell;
  cell.value = cell.low = cell.high = narrowed(value);
  if (std::isnan(value)) cell.marks |= mark::kNan;
  if (std::isinf(value)) cell.marks |= mark::kInf;
  return cell;
}

// Finds between which steps the rows of gaps were lost, from the rows that are there.
class LostRows {
 public:
  explicit LostRows(const std::vector<ReadGap>& gaps) {
    for (const ReadGap& one : gaps) of_[{one.rank, one.restart}].push_back({one, kNone, kNone});
    for (auto& [place, list] : of_) {
      std::ranges::sort(list, {}, [](const Place& one) { return one.gap.gap.first_seq; });
    }
  }
  void look_at(const ReadRow& row) {
    const auto found = of_.find({row.rank, row.restart});
    if (found == of_.end()) return;
    auto& list = found->second;
    const auto after = std::ranges::upper_bound(
        list, row.seq, {}, [](const Place& one) { return one.gap.gap.first_seq; });
    if (after != list.end()) after->before = std::max(after->before, row.step);
    if (after == list.begin()) return;
    std::int64_t& next = std::prev(after)->after;
    next = next == kNone ? row.step : std::min(next, row.step);
  }
  std::vector<Loss> losses() const {
    std::vector<Loss> all;
    for (const auto& [place, list] : of_) {
      std::int64_t before = kNone;
      for (std::size_t i = 0; i < list.size(); ++i) {
        before = std::max(before, list[i].before);
        std::int64_t after = kNone;
        for (std::size_t j = i; j < list.size() && after == kNone; ++j) after = list[j].after;
        all.push_back({place.first, place.second, before == kNone ? after : before,
                       after == kNone ? before : after, list[i].gap.gap.rows,
                       list[i].gap.gap.reason});
      }
    }
    return all;
  }

 private:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();
  struct Place {
    ReadGap gap;
    std::int64_t before;  // the last step of a row before it
    std::int64_t after;   // the first step of a row behind it
  };
  std::map<std::pair<int, int>, std::vector<Place>> of_;
};

// Of all tensors of a kind on a rank together, in each step.
class GlobalNorms {
 public:
  void add(const std::string& kind, const ReadRow& row) {
    if (row.accum != 0 && kind != kind::kGradReduced) return;
    if (kind != kind::kGradReduced && kind != kind::kParamOrigin) return;
    Sum& sum = sums_[{kind, row.step}];
    if (row.attempt > sum.attempt) sum = {row.attempt, 0.0};
    if (row.attempt < sum.attempt) return;
    const double norm = derive(Stat::norm, row.state);
    sum.norm = std::hypot(sum.norm, norm);
    if (std::isnan(norm)) sum.norm = norm;  // which an infinity would hide
  }
  void give_to(CellTable& curves, int run, int rank) {
    for (const auto& [place, sum] : sums_) {
      const std::int64_t line = curves.line({"norm", 0, place.first, ""}, run, rank);
      if (line >= 0) curves.add(line, place.second, cell_of(sum.norm));
    }
    sums_.clear();
  }

 private:
  struct Sum {
    std::int32_t attempt = 0;
    double norm = 0.0;
  };
  std::map<std::pair<std::string, std::int64_t>, Sum> sums_;
};

std::string declared_name(const ReadDeclared& one) {
  std::string name = one.value.name + " of group " + std::to_string(one.group);
  return one.optimizer == 0 ? name : name + " of optimizer " + std::to_string(one.optimizer);
}

void add_curves(const RunRows& facts, int run, CellTable& curves) {
  for (const ReadScalar& one : facts.scalars) {
    const std::int64_t line = curves.line({"logged", 0, one.name, ""}, run, one.rank);
    if (line >= 0) curves.add(line, one.step, cell_of(one.value));
  }
  for (const ReadDeclared& one : facts.declared) {
    if (one.value.type != DeclaredValue::Type::number) continue;
    const std::int64_t line = curves.line({"declared", 0, declared_name(one), ""}, run, one.rank);
    if (line >= 0) curves.add(line, one.step, cell_of(one.value.number));
  }
}

void score_curves(CellTable& curves) {
  for (std::size_t i = 0; i < curves.lines().size(); ++i) {
    LineHistory<BadPlace> history;
    for (const Cell& cell : curves.cells_of(curves.lines()[i]).cells) {
      BadPlace place;
      place.step = cell.bin;
      const bool is_bad = (cell.marks & (mark::kNan | mark::kInf)) != 0;
      history.add(cell.bin, is_bad ? std::numeric_limits<double>::infinity() : cell.value, place);
    }
    const Unusual<BadPlace>& found = history.end();
    curves.set_unusual(static_cast<std::int64_t>(i), found.score, found.row);
  }
}

// Finds the tensor of the first run that one of the second is, whatever wrappers put into its name.
class Counterparts {
 public:
  explicit Counterparts(Gathered& to) : renamed_(to.renamed) {
    for (const Tensor& one : to.rows.tensors()) {
      known_.insert(one);
      Tensor plain = unwrapped(one);
      const auto [at, is_new] = by_plain_name_.try_emplace(std::move(plain), one.name);
      if (!is_new) at->second.clear();  // two: it is neither
    }
  }
  Tensor operator()(Tensor tensor) const {
    if (known_.contains(tensor)) return tensor;
    const auto found = by_plain_name_.find(unwrapped(tensor));
    if (found == by_plain_name_.end() || found->second.empty()) return tensor;
    renamed_[tensor.name] = found->second;
    tensor.name = found->second;
    return tensor;
  }

 private:
  static Tensor unwrapped(Tensor tensor) {
    tensor.name = unwrapped_name(tensor.name);
    return tensor;
  }
  std::map<std::string, std::string>& renamed_;
  std::set<Tensor> known_;
  std::map<Tensor, std::string> by_plain_name_;
};

// The rows of a run into the table, rank by rank.
class Reading {
 public:
  Reading(const RunStream& stream, int run, Gathered& to)
      : facts_(stream.facts()),
        stream_(stream),
        run_(run),
        rows_(to.rows),
        curves_(to.curves),
        histograms_(to.histograms),
        to_(to.runs[static_cast<std::size_t>(run)]),
        counterpart_(to),
        lost_(stream.facts().gaps),
        histories_(stream.facts().series) {
    for (const Series& one : facts_.series) kinds_.push_back(&to_.kinds[one.kind]);
  }
  void read(const RunStream::Piece& piece) {
    if (piece.rank != rank_) end_rank(piece.rank);
    RunStream::Take take;
    take.row = [this](const ReadRow& row) { add(row); };
    take.payload = [this](ReadPayload&& payload) { add(payload); };
    take.columns = columns_of(std::span<const Stat>(kStats));
    stream_.read(piece, take, to_.damage);
  }
  void end() {
    end_rank(-1);
    to_.losses = lost_.losses();
    std::erase_if(to_.kinds, [](const auto& one) { return one.second.rows == 0; });
  }

 private:
  void end_rank(int next) {
    histories_.end_rank([this](std::uint32_t tensor, const Unusual<RowPlace>& one) {
      const Place& place = places_[tensor];
      const BadPlace at = place_of(facts_, one.row, facts_.series[place.series]);
      rows_.set_unusual(place.line, one.score, at);
    });
    if (rank_ >= 0) rows_.join_equal(run_, rank_);
    if (rank_ >= 0) norms_.give_to(curves_, run_, rank_);
    rank_ = next;
    places_.assign(histories_.tensors().count, {});
    newest_.clear();
  }
  void add(const ReadRow& row) {
    ++to_.count;
    const Series& series = facts_.series[row.series];
    lost_.look_at(row);
    const auto [restart, is_new] = to_.restarts.try_emplace(row.restart, row.step);
    restart->second = std::min(restart->second, row.step);
    KindFacts& kind = *kinds_[row.series];
    Place& place = places_[histories_.tensors().of[row.series]];
    if (place.facts == nullptr) {
      place.line = rows_.line(
          counterpart_({series.kind, series.chunk, series.name, series.element}), run_, row.rank);
      place.series = row.series;
      place.facts = &kind.ranks[row.rank];
      ++place.facts->tensors;
    }
    note(kind, *place.facts, row.step);
    norms_.add(series.kind, row);
    if (place.line < 0) return;
    rows_.add(place.line, row.step, cell_of(row));
    const std::optional<double> value = history_value(row, series, Stat::norm);
    if (value) histories_.add(row.series, row.step, *value, row);
  }
  void add(const ReadPayload& one) {
    if (one.payload.type != PayloadType::histogram) return;
    const std::optional<Histogram> histogram = read_histogram(one.payload.bytes);
    if (!histogram) return;
    const Series& series = facts_.series[one.series];
    const Tensor tensor = counterpart_({series.kind, series.chunk, series.name, series.element});
    histograms_.add(tensor, run_, one.rank, one.step, *histogram);
  }
  // A step is new where it is later than all before it: rows of a rank mostly ascend.
  void note(KindFacts& kind, RankFacts& rank, std::int64_t step) {
    ++rank.rows;
    if (kind.rows++ == 0) kind.first_step = kind.last_step = step;
    kind.first_step = std::min(kind.first_step, step);
    kind.last_step = std::max(kind.last_step, step);
    const auto [newest, is_first] = newest_.try_emplace(&kind, step);
    if (is_first || step > newest->second) ++rank.steps;
    newest->second = std::max(newest->second, step);
    kind.steps = std::max(kind.steps, rank.steps);
  }

  struct Place {
    std::int64_t line = -1;
    std::uint32_t series = 0;
    RankFacts* facts = nullptr;  // nullptr: no row was seen yet
  };
  const RunRows& facts_;
  const RunStream& stream_;
  const int run_;
  CellTable& rows_;
  CellTable& curves_;
  HistogramTable& histograms_;
  GatheredRun& to_;
  const Counterparts counterpart_;
  LostRows lost_;
  GlobalNorms norms_;
  RankHistories<RowPlace> histories_;
  int rank_ = -1;
  std::vector<Place> places_;                  // of this rank, by tensor
  std::map<KindFacts*, std::int64_t> newest_;  // step of this rank
  std::vector<KindFacts*> kinds_;              // by series
};

}  // namespace

Gathered gather(std::span<const std::filesystem::path> runs, const ReportOptions& options,
                std::int64_t close_step) {
  const std::int64_t first = close_step < 0 ? 0 : close_step - kClose;
  const std::int64_t last = close_step < 0 ? -1 : close_step + kClose;
  const std::int64_t most = std::max<std::int64_t>(1000, options.max_bytes / kBytesOfCell);
  Gathered to{
      {most, first, last}, {most / 4, first, last}, HistogramTable(options.max_bytes / 4), {}, {}};
  to.runs.resize(runs.size());
  ReadOptions select = options.select;
  select.all_restarts = select.merged = false;
  std::int64_t done = 0, total = 0;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const RunStream stream(runs[run], select);
    const int number = static_cast<int>(run);
    add_curves(stream.facts(), number, to.curves);
    Reading reading(stream, number, to);
    for (const RunStream::Piece& piece : stream.pieces()) total += piece.bytes;
    for (const RunStream::Piece& piece : stream.pieces()) {
      if (options.cancelled && options.cancelled()) throw Cancelled();
      reading.read(piece);
      done += piece.bytes;
      if (options.progress) options.progress(done, total);
    }
    reading.end();
    for (const int rank : stream.facts().ranks) to.curves.join_equal(number, rank);
  }
  score_curves(to.curves);
  return to;
}

}  // namespace trainmon::page
