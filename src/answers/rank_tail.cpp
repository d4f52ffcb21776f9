// A step is told when its outcome is known, a later one has begun and no batch is missing in
// between. Batches go missing for a while because values of devices arrive late. A run that
// stands still does not hold its step back.
#include "answers/rank_tail.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "model/first_bad.h"
#include "read/completeness.h"
#include "read/log_index.h"
#include "read/missing_ranks.h"

namespace trainmon {
namespace {

constexpr std::size_t kWindowsKept = 4096;  // outcomes remembered for steps that are not known yet

constexpr std::int32_t kNoOptimizer = -1;

}  // namespace

double joined_norm(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<double>::quiet_NaN()
                                        : std::hypot(a, b);
}

RankTail::RankTail(RankDirectory directory, const RowFilter& filter, TailOf tells,
                   std::size_t segments)
    : directory_(std::move(directory)),
      filter_(filter),
      tells_(tells),
      log_(directory_.path, directory_.rank, directory_.restart, segments) {}

bool RankTail::look(TailNews& news, std::int64_t most) {
  const bool is_new =
      log_.look([&](RecordBatch&& batch) { take(std::move(batch), news); }, news.damage, most);
  quiet_looks_ = is_new ? 0 : quiet_looks_ + 1;
  tell_ended(news);
  return is_new;
}

void RankTail::check(std::vector<Damage>& damage) const {
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

std::int64_t TailStep::alert_count() const {
  std::int64_t count = 0;
  for (const auto& [rule, of_rule] : alerts) count += of_rule;
  return count;
}

void RankTail::unfinished(TailNews& news) {
  for (auto& [key, window] : open_) tell(window, news);
  open_.clear();
}

std::vector<std::string> RankTail::kinds() const {
  std::set<std::string> present;
  for (const auto& [id, series] : log_.series()) present.insert(series.kind);
  return {present.begin(), present.end()};
}

void RankTail::read_facts(std::vector<Damage>& damage) {
  if (has_facts_) return;
  has_facts_ = true;
  facts_ = read_run_json(directory_, damage);
  timeline_.set_start_steps(facts_.start_steps);
}

RankTail::OpenWindow* RankTail::window(std::int32_t optimizer, std::int64_t number,
                                       const RecordBatch& batch) {
  if (tells_ == TailOf::clock_steps && optimizer != facts_.clock) {
    optimizer = facts_.clock;
    const auto newest = newest_.find(optimizer);
    number = newest == newest_.end() ? 0 : newest->second;
  }
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

void RankTail::take(RecordBatch&& batch, TailNews& news) {
  read_facts(news.damage);
  note_number(batch.number);
  timeline_.add(batch);
  timeline_.keep_last(kWindowsKept);
  for (const Row& row : batch.rows) take_row(row, batch, news);
  if (tells_ == TailOf::rows) return;
  for (const Scalar& scalar : batch.scalars) {
    OpenWindow* const found = window(facts_.clock, scalar.window, batch);
    if (found == nullptr) continue;
    found->step.scalars.emplace_back(scalar.name, scalar.value);
  }
  for (const Alert& alert : batch.alerts) {
    const Series& series = log_.series().at(alert.key.series);
    if (alert.count != 1 || !filter_.takes(series)) continue;
    // Those of the clock's steps count where they became known, which may be a step later.
    const bool is_by_clock = tells_ == TailOf::clock_steps;
    const std::int32_t optimizer = is_by_clock ? kNoOptimizer : series.optimizer;
    if (OpenWindow* const found = window(optimizer, alert.key.window, batch)) {
      ++found->step.alerts[alert.rule];
    } else {
      news.alerts.push_back({directory_.restart, directory_.rank, alert});
    }
  }
  for (const Gap& gap : batch.gaps) {
    lost_ += gap.rows;
    ++gaps_;
  }
  for (const Outcome& outcome : batch.outcomes) {
    if (tells_ == TailOf::clock_steps && outcome.optimizer != facts_.clock) continue;
    if (OpenWindow* const found = window(outcome.optimizer, outcome.window, batch)) {
      found->step.is_closed = true;
    }
  }
}

void RankTail::take_row(const Row& row, const RecordBatch& batch, TailNews& news) {
  const Series& series = log_.series().at(row.key.series);
  if (!filter_.takes(series)) return;
  if (tells_ == TailOf::rows) return tell_row(row, series, news);
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
  if (!is_bad(row.key.flags, state)) return;
  found->step.non_finite += state.nans + state.pos_infs + state.neg_infs;
  const BadPlace place = bad_place(series.kind, row.key.accum, row.key.seq, {});
  if (found->bad == nullptr || place < found->bad_place) {
    found->bad = &series;
    found->bad_place = place;
    found->bad_norm = norm;
  }
}

void RankTail::tell_row(const Row& row, const Series& series, TailNews& news) {
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
void RankTail::note_number(std::uint64_t number) {
  newest_batch_ = std::max(newest_batch_, number);
  if (!next_number_) next_number_ = number;
  if (number >= *next_number_) ahead_.insert(number);
  while (!ahead_.empty() && *ahead_.begin() == *next_number_) {
    ahead_.erase(ahead_.begin());
    ++*next_number_;
  }
}

bool RankTail::has_ended(const WindowKey& key, const OpenWindow& window) const {
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

void RankTail::tell_ended(TailNews& news) {
  for (auto entry = open_.begin(); entry != open_.end();) {
    if (!has_ended(entry->first, entry->second)) {
      ++entry;
      continue;
    }
    tell(entry->second, news);
    entry = open_.erase(entry);
  }
}

void RankTail::tell(OpenWindow& window, TailNews& news) {
  TailStep& step = window.step;
  const std::int32_t optimizer = step.outcome.optimizer;
  std::int64_t& told = told_.try_emplace(optimizer, -1).first->second;
  told = std::max(told, step.outcome.window);
  step.outcome = timeline_.at(optimizer, step.outcome.window);
  step.outcome.optimizer = optimizer;
  step.rows_lost = std::exchange(lost_, 0);
  step.gaps = std::exchange(gaps_, 0);
  const auto& series = log_.series();
  for (const auto& [tensor, norm] : window.norms) step.norms[series.at(tensor.first).kind] = 0.0;
  for (auto& [kind, norm] : step.norms) norm = norm_of(window, kind);
  if (tells_ == TailOf::clock_steps) {
    for (const auto& [tensor, norm] : window.norms) {
      const Series* const of = &series.at(tensor.first);
      if (step.tensors.empty() || step.tensors.back().first != of) step.tensors.emplace_back(of, 0);
      step.tensors.back().second = joined_norm(step.tensors.back().second, norm);
    }
  }
  if (window.bad != nullptr) {
    step.worst = *window.bad;
    step.worst_norm = window.bad_norm;
  } else {
    const auto key = [&](const auto& entry) {
      return std::pair(is_parameter_gradient(series.at(entry.first.first).kind), entry.second);
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

double RankTail::norm_of(const OpenWindow& window, std::string_view kind) const {
  double sum = 0.0;
  for (const auto& [tensor, norm] : window.norms) {
    if (log_.series().at(tensor.first).kind == kind) sum = joined_norm(sum, norm);
  }
  return sum;
}

std::vector<std::string> incompleteness(const std::vector<RankDirectory>& directories,
                                        const RowFilter& filter) {
  std::vector<std::string> found;
  ExpectedRanks expected;
  for (std::size_t i = 0; i < directories.size(); ++i) {
    const RankDirectory& one = directories[i];
    if (one.error || !filter.takes_rank(one.rank)) continue;
    std::vector<Damage> said_elsewhere;
    const RunFacts facts = read_run_json(one, said_elsewhere);
    const auto stored = read_health_json(one, said_elsewhere);
    expected.add(facts);
    Completeness state = completeness_of(one, facts, stored, nullptr, is_last(directories, i));
    std::move(state.incomplete.begin(), state.incomplete.end(), std::back_inserter(found));
  }
  MissingRanks missing = expected.missing(directories);
  std::erase_if(missing.ranks, [&](int rank) { return !filter.takes_rank(rank); });
  if (!missing.ranks.empty()) found.push_back(missing_text(missing));
  return found;
}

}  // namespace trainmon
