// A step is told when its outcome is known and a later one has begun, with no batch still missing
// in between: values of devices arrive late. A run that stands still does not hold its step back.
#include "answers/tail.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "model/timeline.h"
#include "read/bad_place.h"
#include "read/completeness.h"
#include "read/earlier_findings.h"
#include "read/log_index.h"
#include "read/log_tail.h"
#include "read/missing_ranks.h"
#include "read/row_filter.h"
#include "read/run_layout.h"

namespace trainmon {
namespace {

constexpr std::size_t kWindowsKept = 4096;  // outcomes remembered for steps that are not known yet

bool is_of_parameter(std::string_view kind) {
  return kind == kind::kGradReduced || kind == kind::kGradUnreduced;
}

// A window while it is open.
struct OpenWindow {
  TailStep step;
  // Of the running sums of an accumulation the last counts.
  std::map<std::pair<SeriesId, std::int32_t>, double> norms;
  const Series* bad = nullptr;
  BadPlace bad_place;
  double bad_norm = 0.0;
};

double norm_of(const std::map<SeriesId, Series>& series, const OpenWindow& window,
               std::string_view kind) {
  double sum = 0.0;
  for (const auto& [tensor, norm] : window.norms) {
    if (series.at(tensor.first).kind != kind) continue;
    if (std::isnan(norm)) return norm;  // hypot(inf, nan) is inf
    sum = std::hypot(sum, norm);
  }
  return sum;
}

}  // namespace

class RunTail::Place {
 public:
  Place(RankDirectory directory, const RowFilter& filter, bool wants_rows, std::size_t segments)
      : directory_(std::move(directory)),
        filter_(filter),
        wants_rows_(wants_rows),
        log_(directory_.path, directory_.rank, directory_.restart, segments) {}

  void look(TailNews& news) {
    const bool is_new =
        log_.look([&](RecordBatch&& batch) { take(std::move(batch), news); }, news.damage);
    quiet_looks_ = is_new ? 0 : quiet_looks_ + 1;
    tell_ended(news);
  }

  // What is missing of the log: before what was read, and of a closed one behind it.
  void check(std::vector<Damage>& damage) const {
    std::vector<Damage> cut =
        LogIndex::cut_segments(directory_.path, directory_.rank, directory_.restart);
    std::move(cut.begin(), cut.end(), std::back_inserter(damage));
    std::vector<Damage> said_elsewhere;
    const auto stored = read_health_json(directory_, said_elsewhere);
    if (!stored || !stored->closed) return;
    for (const SinkHealth& sink : stored->health.sinks) {
      // Batches are numbered from 1; those that were dropped have a number, too.
      const auto newest = static_cast<std::int64_t>(newest_batch_);
      if (sink.name != "log" || newest >= sink.batches_written) continue;
      damage.push_back({directory_.path, 0,
                        "health.json says " + grouped(sink.batches_written) +
                            " batches were written, the log ends with batch " + grouped(newest)});
    }
  }

  void unfinished(TailNews& news) {
    for (auto& [key, window] : open_) tell(window, news);
    open_.clear();
  }

  bool is_whole() const { return log_.is_whole(); }
  std::vector<std::string> kinds() const {
    std::set<std::string> present;
    for (const auto& [id, series] : log_.series()) present.insert(series.kind);
    return {present.begin(), present.end()};
  }

 private:
  using WindowKey = std::pair<std::int32_t, std::int64_t>;  // optimizer, window

  void read_facts(std::vector<Damage>& damage) {
    if (has_facts_) return;
    has_facts_ = true;
    facts_ = read_run_json(directory_, damage);
    timeline_.set_start_steps(facts_.start_steps);
  }

  OpenWindow* window(std::int32_t optimizer, std::int64_t number, const RecordBatch& batch) {
    const auto told = told_.find(optimizer);
    if (told != told_.end() && number <= told->second) return nullptr;
    OpenWindow& found = open_[{optimizer, number}];
    TailStep& step = found.step;
    step.restart = directory_.restart;
    step.rank = directory_.rank;
    step.outcome.optimizer = optimizer;
    step.outcome.window = number;
    step.time_ns = std::max(step.time_ns, batch.time_ns);
    std::int64_t& newest = newest_[optimizer];
    if (number > newest || !batch_of_newest_.contains(optimizer)) {
      newest = number;
      batch_of_newest_[optimizer] = batch.number;
    }
    return &found;
  }

  void take(RecordBatch&& batch, TailNews& news) {
    read_facts(news.damage);
    note_number(batch.number);
    timeline_.add(batch);
    timeline_.keep_last(kWindowsKept);
    for (const Row& row : batch.rows) take_row(row, batch, news);
    if (wants_rows_) return;
    for (const Scalar& scalar : batch.scalars) {
      OpenWindow* const found = window(facts_.clock, scalar.window, batch);
      if (found == nullptr) continue;
      found->step.scalars.emplace_back(scalar.name, scalar.value);
    }
    for (const Alert& alert : batch.alerts) {
      const Series& series = log_.series().at(alert.key.series);
      if (alert.count != 1 || !filter_.takes(series)) continue;
      if (OpenWindow* const found = window(series.optimizer, alert.key.window, batch)) {
        ++found->step.alerts;
      }
    }
    for (const Gap& gap : batch.gaps) lost_ += gap.rows;
    for (const Outcome& outcome : batch.outcomes) {
      if (OpenWindow* const found = window(outcome.optimizer, outcome.window, batch)) {
        found->step.is_closed = true;
      }
    }
  }

  void take_row(const Row& row, const RecordBatch& batch, TailNews& news) {
    const Series& series = log_.series().at(row.key.series);
    if (!filter_.takes(series)) return;
    if (wants_rows_) return tell_row(row, series, news);
    OpenWindow* const found = window(series.optimizer, row.key.window, batch);
    if (found == nullptr) {
      ++news.rows_late;
      return;
    }
    ++found->step.rows;
    if ((row.key.flags & flag::kNotReady) != 0) return;
    const double norm = derive(Stat::norm, row.state);
    found->norms[{row.key.series, row.key.call}] = norm;
    const RowState& state = row.state;
    found->step.non_finite += state.nans + state.pos_infs + state.neg_infs;
    if (!state.non_finite()) return;
    const BadPlace place = bad_place(series.kind, row.key.accum, row.key.seq, {});
    if (found->bad == nullptr || place < found->bad_place) {
      found->bad = &series;
      found->bad_place = place;
      found->bad_norm = norm;
    }
  }

  void tell_row(const Row& row, const Series& series, TailNews& news) {
    TailRow out{{}, series};
    const Outcome outcome = timeline_.at(series.optimizer, row.key.window);
    out.row.restart = directory_.restart;
    out.row.rank = directory_.rank;
    out.row.window = row.key.window;
    out.row.step = outcome.step;
    out.row.attempt = outcome.attempt;
    out.row.fate = outcome.fate;
    out.row.loss_scale = outcome.loss_scale;
    out.row.accum = row.key.accum;
    out.row.micro_step = facts_.grad_acc_steps
                             ? static_cast<std::int32_t>(row.key.accum % *facts_.grad_acc_steps)
                             : row.key.accum;
    out.row.call = row.key.call;
    out.row.seq = row.key.seq;
    out.row.flags = row.key.flags;
    out.row.state = row.state;
    news.rows.push_back(std::move(out));
  }

  // Batches are numbered as they were sealed: a number that is not there yet may still come.
  void note_number(std::uint64_t number) {
    newest_batch_ = std::max(newest_batch_, number);
    if (!next_number_) next_number_ = number;
    if (number >= *next_number_) ahead_.insert(number);
    while (!ahead_.empty() && *ahead_.begin() == *next_number_) {
      ahead_.erase(ahead_.begin());
      ++*next_number_;
    }
  }

  bool has_ended(const WindowKey& key, const OpenWindow& window) const {
    if (!window.step.is_closed) {
      // Of an outcome that was lost nothing is known, but later ones have ended.
      const auto told = told_.find(key.first);
      if (told != told_.end() && told->second > key.second) return true;
      const auto next = open_.upper_bound(key);
      return next != open_.end() && next->first.first == key.first && next->second.step.is_closed;
    }
    if (quiet_looks_ >= kTailPatience) return true;
    const std::int64_t newest = newest_.at(key.first);
    if (newest == key.second) return false;
    return *next_number_ >= batch_of_newest_.at(key.first) || newest > key.second + 2;
  }

  void tell_ended(TailNews& news) {
    for (auto entry = open_.begin(); entry != open_.end();) {
      if (!has_ended(entry->first, entry->second)) {
        ++entry;
        continue;
      }
      tell(entry->second, news);
      entry = open_.erase(entry);
    }
  }

  void tell(OpenWindow& window, TailNews& news) {
    TailStep& step = window.step;
    const std::int32_t optimizer = step.outcome.optimizer;
    std::int64_t& told = told_.try_emplace(optimizer, -1).first->second;
    told = std::max(told, step.outcome.window);
    step.outcome = timeline_.at(optimizer, step.outcome.window);
    step.outcome.optimizer = optimizer;
    step.rows_lost = std::exchange(lost_, 0);
    const auto& series = log_.series();
    for (const auto& [tensor, norm] : window.norms) step.norms[series.at(tensor.first).kind] = 0.0;
    for (auto& [kind, norm] : step.norms) norm = norm_of(series, window, kind);
    if (window.bad != nullptr) {
      step.worst = *window.bad;
      step.worst_norm = window.bad_norm;
    } else {
      const auto key = [&](const auto& entry) {
        return std::pair(is_of_parameter(series.at(entry.first.first).kind), entry.second);
      };
      const auto largest =
          std::max_element(window.norms.begin(), window.norms.end(),
                           [&](const auto& a, const auto& b) { return key(a) < key(b); });
      if (largest != window.norms.end()) {
        step.worst = series.at(largest->first.first);
        step.worst_norm = largest->second;
      }
    }
    news.steps.push_back(std::move(step));
  }

  const RankDirectory directory_;
  const RowFilter filter_;
  const bool wants_rows_;
  LogTail log_;
  RunFacts facts_;
  bool has_facts_ = false;
  Timeline timeline_;
  std::map<WindowKey, OpenWindow> open_;
  std::map<std::int32_t, std::int64_t> told_;              // optimizer -> newest window told
  std::map<std::int32_t, std::int64_t> newest_;            // optimizer -> newest window seen
  std::map<std::int32_t, std::uint64_t> batch_of_newest_;  // and the batch that began it
  std::optional<std::uint64_t> next_number_;
  std::set<std::uint64_t> ahead_;
  std::uint64_t newest_batch_ = 0;
  std::int64_t lost_ = 0;
  int quiet_looks_ = 0;
};

RunTail::RunTail(std::filesystem::path run, const ReadOptions& options, bool wants_rows,
                 std::size_t newest)
    : run_(std::move(run)), options_(options), wants_rows_(wants_rows), newest_(newest) {
  rank_directories(run_);  // throws where there is no run
}

RunTail::~RunTail() = default;

std::size_t RunTail::ranks() const {
  std::set<int> ranks;
  for (const auto& [key, place] : places_) ranks.insert(key.first);
  return ranks.size();
}

std::optional<WriterState> RunTail::ended() const {
  const std::vector<RankDirectory> there = rank_directories(run_);
  const RowFilter filter(options_);
  std::optional<WriterState> end;
  for (std::size_t i = 0; i < there.size(); ++i) {
    if (there[i].error || !filter.takes_rank(there[i].rank) || !is_newest(there, i)) continue;
    std::vector<Damage> said_elsewhere;
    const RunFacts facts = read_run_json(there[i], said_elsewhere);
    const auto stored = read_health_json(there[i], said_elsewhere);
    const WriterState state = completeness_of(there[i], facts, stored, nullptr, true).writer;
    if (state == WriterState::running || state == WriterState::unknown) return std::nullopt;
    if (!end || state == WriterState::gone) end = state;
  }
  return end;
}

TailNews RunTail::look() {
  TailNews news;
  find_places(news);
  if (!is_first_) {
    for (auto& [key, place] : places_) place->look(news);
  }
  is_first_ = false;
  return news;
}

// At first each rank is read from so far back that there is enough; later restarts from their
// beginning.
void RunTail::find_places(TailNews& news) {
  std::vector<RankDirectory> there = rank_directories(run_);
  const RowFilter filter(options_);
  ExpectedRanks expected;
  for (std::size_t i = 0; is_first_ && i < there.size(); ++i) {
    if (there[i].error || !filter.takes_rank(there[i].rank)) continue;
    std::vector<Damage> said_elsewhere;
    const RunFacts facts = read_run_json(there[i], said_elsewhere);
    const auto stored = read_health_json(there[i], said_elsewhere);
    expected.add(facts);
    Completeness state = completeness_of(there[i], facts, stored, nullptr, is_newest(there, i));
    std::move(state.incomplete.begin(), state.incomplete.end(),
              std::back_inserter(news.incomplete));
  }
  MissingRanks missing = expected.missing(there);
  std::erase_if(missing.ranks, [&](int rank) { return !filter.takes_rank(rank); });
  if (!missing.ranks.empty()) news.incomplete.push_back(missing_text(missing));
  if (is_first_) news.earlier = earlier_findings(there, filter);
  std::vector<std::string> present;
  std::reverse(there.begin(), there.end());  // newest restart of each rank first
  std::set<int> found_some;
  for (const RankDirectory& directory : there) {
    if (!filter.takes_rank(directory.rank)) continue;
    if (directory.error) {
      if (is_first_) news.damage.push_back({directory.path, 0, directory.error.message()});
      continue;
    }
    const PlaceKey key(directory.rank, directory.restart);
    if (places_.contains(key) || (is_first_ && found_some.contains(directory.rank))) continue;
    if (!is_first_) {
      const auto newer = places_.upper_bound(key);
      if (newer != places_.end() && newer->first.first == directory.rank) continue;  // an old one
      places_[key] = std::make_unique<Place>(directory, filter, wants_rows_,
                                             std::numeric_limits<std::size_t>::max());
      continue;
    }
    for (std::size_t segments = 1;; segments *= 4) {
      auto place = std::make_unique<Place>(directory, filter, wants_rows_, segments);
      TailNews here;
      place->look(here);
      const std::size_t count = here.steps.size() + here.rows.size();
      // The first step of a later segment may have begun in the one before.
      if (count <= newest_ && !place->is_whole()) continue;
      for (std::string& kind : place->kinds()) present.push_back(std::move(kind));
      if (count > 0) found_some.insert(directory.rank);
      const auto last = [&](auto& list) {
        if (list.size() > newest_)
          list.erase(list.begin(), list.end() - static_cast<std::ptrdiff_t>(newest_));
      };
      last(here.steps);
      last(here.rows);
      std::move(here.steps.begin(), here.steps.end(), std::back_inserter(news.steps));
      std::move(here.rows.begin(), here.rows.end(), std::back_inserter(news.rows));
      std::move(here.damage.begin(), here.damage.end(), std::back_inserter(news.damage));
      place->check(news.damage);
      places_[key] = std::move(place);
      break;
    }
  }
  if (is_first_) filter.check_kinds(present);
}

TailNews RunTail::unfinished() {
  TailNews news;
  for (auto& [key, place] : places_) place->unfinished(news);
  return news;
}

}  // namespace trainmon
