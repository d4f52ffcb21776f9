// One rank after the other, so that ranks which hold the same take the memory of one.
#include "report/gather.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "answers/history.h"
#include "answers/left_history.h"
#include "base/cancelled.h"
#include "base/text.h"
#include "compare/compare.h"
#include "read/bad_place.h"
#include "read/run_stream.h"
#include "report/lost_rows.h"
#include "report/row_cell.h"

namespace trainmon::page {
namespace {

constexpr std::int64_t kClose = 24;       // steps on each side
constexpr std::int64_t kBytesOfCell = 8;  // of the page, at the least
constexpr std::int64_t kMostKept = 4;     // times the cells of a table, between two looks
constexpr std::array kStats = {Stat::norm,  Stat::min,  Stat::max,  Stat::mean, Stat::std,
                               Stat::zeros, Stat::nans, Stat::infs, Stat::count};

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
  void give_to(CellTable& curves, int run, int rank) const {
    for (const auto& [place, sum] : sums_) {
      const std::int64_t line = curves.line({"norm", 0, place.first, ""}, run, rank);
      if (line >= 0) curves.add(line, place.second, cell_of(sum.norm));
    }
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

}  // namespace

// The rows of one rank of a run, in the order of its log. A copy goes on by itself.
class RankRows {
 public:
  RankRows(const Sizes& sizes, int run, int rank, const RunRows& facts)
      : run_(run),
        rank_(rank),
        rows_(sizes.cells, sizes.first_close, sizes.last_close),
        lost_(facts.gaps, rank),
        histories_(facts.series),
        places_(histories_.tensors().count) {}

  void read(const RunStream& stream, const RunStream::Piece& piece, const Counterparts& counterpart,
            HistogramTable& histograms) {
    const RunRows& facts = stream.facts();
    RunStream::Take take;
    take.row = [&](const ReadRow& row) { add(row, facts.series[row.series], counterpart); };
    take.payload = [&](ReadPayload&& one) {
      if (one.payload.type != PayloadType::histogram) return;
      const std::optional<Histogram> histogram = read_histogram(one.payload.bytes);
      if (!histogram) return;
      histograms.add(counterpart(tensor_of(facts.series[one.series])), run_, one.rank, one.step,
                     *histogram);
    };
    take.columns = columns_of(std::span<const Stat>(kStats));
    stream.read(piece, take, damage_);
  }
  std::int64_t cells() const { return rows_.cells(); }
  std::int64_t count() const { return count_; }
  const std::vector<Damage>& damage() const { return damage_; }

  // Behind those of the ranks before it.
  void give_to(Gathered& all, const RunRows& facts, LeftSteps& left) && {
    GatheredRun& to = all.runs[static_cast<std::size_t>(run_)];
    histories_.end_rank([&](std::uint32_t tensor, const Unusual<RowPlace>& one) {
      const Place& place = places_[tensor];
      if (place.line < 0) return;
      rows_.set_unusual(place.line, one.score,
                        place_of(facts, one.row, facts.series[place.series]));
    });
    left.take(histories_);
    all.rows.take(std::move(rows_), run_, rank_);
    norms_.give_to(all.curves, run_, rank_);
    for (const auto& [name, one] : kinds_) {
      const auto [at, is_new] = to.kinds.try_emplace(name);
      KindFacts& kind = at->second;
      if (is_new) kind.first_step = one.first_step;
      if (is_new) kind.last_step = one.last_step;
      kind.first_step = std::min(kind.first_step, one.first_step);
      kind.last_step = std::max(kind.last_step, one.last_step);
      kind.steps = std::max(kind.steps, one.facts.steps);
      kind.rows += one.facts.rows;
      kind.ranks[rank_] = one.facts;
    }
    for (const auto& [restart, first] : restarts_) {
      const auto [at, is_new] = to.restarts.try_emplace(restart, first);
      at->second = std::min(at->second, first);
    }
    const std::vector<Loss> losses = lost_.losses();
    to.losses.insert(to.losses.end(), losses.begin(), losses.end());
    to.damage.insert(to.damage.end(), damage_.begin(), damage_.end());
    to.count += count_;
  }

 private:
  struct Kind {
    RankFacts facts;
    std::int64_t first_step = 0, last_step = 0;  // the last one is the newest, too
  };
  struct Place {
    std::int64_t line = -1;
    std::uint32_t series = 0;
    bool is_known = false;
  };
  static Tensor tensor_of(const Series& series) {
    return {series.kind, series.chunk, series.name, series.element};
  }
  void add(const ReadRow& row, const Series& series, const Counterparts& counterpart) {
    ++count_;
    lost_.look_at(row);
    const auto [restart, is_new] = restarts_.try_emplace(row.restart, row.step);
    restart->second = std::min(restart->second, row.step);
    Kind& kind = kinds_[series.kind];
    Place& place = places_[histories_.tensors().of[row.series]];
    if (!place.is_known) {
      place = {rows_.line(counterpart(tensor_of(series)), run_, rank_), row.series, true};
      ++kind.facts.tensors;
    }
    note(kind, row.step);
    norms_.add(series.kind, row);
    const std::optional<LineValue> value = line_value(row, series);
    if (value) histories_.add(*value);
    if (place.line >= 0) rows_.add(place.line, row.step, cell_of(row));
  }
  // A step is new where it is later than all before it: rows of a rank mostly ascend.
  static void note(Kind& kind, std::int64_t step) {
    const bool is_first = kind.facts.rows++ == 0;
    if (is_first) kind.first_step = step;
    if (is_first || step > kind.last_step) {
      ++kind.facts.steps;
      kind.last_step = step;
    }
    kind.first_step = std::min(kind.first_step, step);
  }

  int run_, rank_;
  CellTable rows_;
  GlobalNorms norms_;
  LostRows lost_;
  LeftLines histories_;
  std::vector<Place> places_;  // by tensor
  std::map<std::string, Kind> kinds_;
  std::map<int, std::int64_t> restarts_;
  std::vector<Damage> damage_;
  std::int64_t count_ = 0;
};

namespace {

Sizes sizes_of(const ReportOptions& options, std::int64_t close_step) {
  Sizes sizes;
  sizes.cells = std::max<std::int64_t>(1000, options.max_bytes / kBytesOfCell);
  sizes.histogram_bytes = options.max_bytes / 4;
  sizes.first_close = close_step < 0 ? 0 : close_step - kClose;
  sizes.last_close = close_step < 0 ? -1 : close_step + kClose;
  return sizes;
}

Gathered nothing(const Sizes& sizes, HistogramTable histograms, std::size_t runs) {
  Gathered to{{sizes.cells, sizes.first_close, sizes.last_close},
              {sizes.cells / 4, sizes.first_close, sizes.last_close},
              std::move(histograms),
              {},
              {}};
  to.runs.resize(runs);
  return to;
}

// Of rows and of gaps.
std::set<int> ranks_of(const RunStream& stream) {
  std::set<int> ranks;
  for (const RunStream::Piece& piece : stream.pieces()) ranks.insert(piece.rank);
  for (const ReadGap& one : stream.facts().gaps) ranks.insert(one.rank);
  return ranks;
}

}  // namespace

Gathered gather(std::span<const OpenedRun> runs, std::span<const Diagnosis* const> diagnoses,
                const ReportOptions& options, std::int64_t close_step) {
  const Sizes sizes = sizes_of(options, close_step);
  Gathered to = nothing(sizes, HistogramTable(sizes.histogram_bytes), runs.size());
  ReadOptions select = options.select;
  select.all_restarts = select.merged = false;
  std::int64_t done = 0, total = 0;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const RunStream stream(runs[run], select);
    const int number = static_cast<int>(run);
    add_curves(stream.facts(), number, to.curves);
    const Counterparts counterpart(to);
    LeftSteps left(stream.facts(), *diagnoses[run]);
    for (const RunStream::Piece& piece : stream.pieces()) total += piece.bytes;
    for (const int rank : ranks_of(stream)) {
      RankRows rows(sizes, number, rank, stream.facts());
      for (const RunStream::Piece& piece : stream.pieces()) {
        if (piece.rank != rank) continue;
        if (options.cancelled && options.cancelled()) throw Cancelled();
        rows.read(stream, piece, counterpart, to.histograms);
        done += piece.bytes;
        if (options.progress) options.progress(done, total);
      }
      std::move(rows).give_to(to, stream.facts(), left);
    }
    to.runs[run].left_history = left.found();
    add_means(to.runs[run].left_history, runs[run], select, *diagnoses[run]);
    for (const int rank : stream.facts().ranks) to.curves.join_equal(number, rank);
  }
  score_curves(to.curves);
  return to;
}

GrowingGather::GrowingGather() = default;
GrowingGather::~GrowingGather() = default;

void GrowingGather::forget() {
  growth_.forget();
  ranks_.clear();
  histograms_.reset();
}

Gathered GrowingGather::look(const OpenedRun& run, const Diagnosis& diagnosis,
                             const ReportOptions& options, std::int64_t close_step) {
  const Sizes sizes = sizes_of(options, close_step);
  const RunStream stream(run, {});
  const auto read_all = [&] {
    const Diagnosis* const of_run = &diagnosis;
    Gathered whole = gather({&run, 1}, {&of_run, 1}, options, close_step);
    rows_read_ = whole.runs[0].count;
    return whole;
  };
  if (!stream.facts().damage.empty()) {
    forget();
    return read_all();
  }
  if (!(sizes == sizes_)) forget();
  if (!growth_.look(stream) || !histograms_) {
    ranks_.clear();
    histograms_.emplace(sizes.histogram_bytes);
    sizes_ = sizes;
  }
  Gathered to = nothing(sizes, *histograms_, 1);
  const Counterparts counterpart(to);
  const auto read = [&](RankRows& rows, const RunStream::Piece& piece, HistogramTable& histograms) {
    if (options.cancelled && options.cancelled()) throw Cancelled();
    rows.read(stream, piece, counterpart, histograms);
  };
  std::int64_t before = 0;
  for (const auto& [rank, rows] : ranks_) before += rows.count();
  for (const RunStream::Piece& piece : growth_.settled()) {
    const auto at = ranks_.try_emplace(piece.rank, sizes, 0, piece.rank, stream.facts()).first;
    read(at->second, piece, *histograms_);
  }
  to = nothing(sizes, *histograms_, 1);
  add_curves(stream.facts(), 0, to.curves);
  std::int64_t cells = 0;
  bool is_damaged = false;
  LeftSteps left(stream.facts(), diagnosis);
  const std::set<int> ranks = ranks_of(stream);
  for (const int rank : ranks) {
    const auto known = ranks_.find(rank);
    RankRows now = known == ranks_.end() ? RankRows(sizes, 0, rank, stream.facts()) : known->second;
    cells += now.cells();
    for (const RunStream::Piece& piece : growth_.open()) {
      if (piece.rank == rank) read(now, piece, to.histograms);
    }
    is_damaged = is_damaged || !now.damage().empty();
    std::move(now).give_to(to, stream.facts(), left);
  }
  to.runs[0].left_history = left.found();
  for (const int rank : stream.facts().ranks) to.curves.join_equal(0, rank);
  const bool has_histograms = to.histograms.bins() > 0 && ranks.size() > 1;
  if (is_damaged || has_histograms || cells > kMostKept * sizes.cells) forget();
  if (is_damaged || has_histograms) return read_all();
  score_curves(to.curves);
  rows_read_ = to.runs[0].count - before;
  return to;
}

}  // namespace trainmon::page
