#include "detect/step_checks.h"

#include <algorithm>
#include <utility>

#include "model/own_scalars.h"

namespace trainmon::detect {

StepChecks::Clock& StepChecks::clock_of(std::int32_t optimizer) {
  return clocks_.try_emplace(optimizer, parameters_.tensors(), rank_).first->second;
}

StepChecks::Open* StepChecks::open(std::int32_t optimizer, std::int64_t window,
                                   std::uint64_t number) {
  Clock& clock = clock_of(optimizer);
  if (window < clock.next) return nullptr;
  const auto [at, is_new] = clock.open.try_emplace(window);
  if (is_new) at->second.begun_in = number;
  return &at->second;
}

void StepChecks::look(const RecordBatch& batch, const SeriesTable& series,
                      std::vector<Alert>& alerts) {
  numbers_.note(batch.number);
  take(batch, series);
  for (auto& [optimizer, clock] : clocks_) {
    // What is lost may be the word that somebody edited a weight.
    if (!batch.gaps.empty()) {
      clock.lost_until = clock.open.empty() ? clock.next : clock.open.rbegin()->first;
    }
    while (!clock.open.empty()) {
      const auto first = clock.open.begin();
      const auto next = std::next(first);
      const bool is_settled = first->second.outcome && next != clock.open.end() &&
                              numbers_.are_complete_to(next->second.begun_in);
      const bool is_last = batch.moment == Moment::stop;
      if (!is_settled && !is_last && clock.open.size() <= kMostOpen) break;
      if (first->first <= clock.lost_until) clock.engine.forget_step();
      clock.next = first->first + 1;
      if (knows_formula_(optimizer)) clock.engine.know_formula(rank_, optimizer);
      check(clock, first->second, series, alerts);
      clock.open.erase(first);
    }
  }
}

void StepChecks::take(const RecordBatch& batch, const SeriesTable& series) {
  while (parameters_.series() < series.size()) {
    parameters_.add(series.at(static_cast<SeriesId>(parameters_.series())));
  }
  auto check = batch.checks.begin();
  for (const Row& row : batch.rows) {
    while (check != batch.checks.end() && check->seq < row.key.seq) ++check;
    if (!parameters_.has_use(row.key.series)) continue;
    Open* const window = open(series.at(row.key.series).optimizer, row.key.window, batch.number);
    if (window == nullptr) continue;
    Measured& measured = window->rows.emplace_back(row);
    if (check != batch.checks.end() && check->seq == row.key.seq) measured.check = *check;
  }
  for (const Declared& declared : batch.declared) {
    Open* const window = open(declared.optimizer, declared.window, batch.number);
    if (window != nullptr) window->declared.push_back(declared);
  }
  for (const Outcome& outcome : batch.outcomes) {
    Open* const window = open(outcome.optimizer, outcome.window, batch.number);
    if (window != nullptr) window->outcome = outcome;
  }
  for (const Scalar& scalar : batch.scalars) {
    if (scalar.name == kOtherOptimizerScalar) {
      const double value = scalar.value;
      const auto optimizer = static_cast<std::int32_t>(value < 0.0 ? -1.0 - value : value);
      Open* const window = open(optimizer, scalar.window, batch.number);
      if (window != nullptr) window->other_optimizer = value;
    }
    if (scalar.name != kEditScalar) continue;
    for (auto& [optimizer, clock] : clocks_) clock.engine.announce_edit(0, rank_, scalar.seq);
  }
}

void StepChecks::check(Clock& clock, Open& window, const SeriesTable& series,
                       std::vector<Alert>& alerts) {
  if (window.other_optimizer) {
    clock.engine.tell_other_optimizer(0, rank_, *window.other_optimizer);
  }
  for (const Declared& group : window.declared) {
    for (const DeclaredValue& value : group.values) {
      clock.engine.declare(0, rank_, group.optimizer, group.group, value.name, number_of(value));
    }
  }
  // What became of a window without an outcome is not known, nor what a scaler left on its rows.
  if (!window.outcome) return clock.engine.forget_step();
  const Outcome& outcome = *window.outcome;
  if (outcome.fate == Fate::skipped || window.rows.empty()) return;
  StepEvidence evidence(0, outcome.step);
  for (const Measured& one : window.rows) {
    const RowCheck* const check = one.check ? &*one.check : nullptr;
    std::optional<Observation> seen = parameters_.observe(
        one.row.key.series, one.row.state, one.row.key.flags, outcome.loss_scale, check);
    if (!seen) {
      const RowKey& key = one.row.key;
      parameters_.add_of_module(evidence, key.series, one.row.state, check,
                                {rank_, key.accum, key.call, key.seq});
      continue;
    }
    seen->rank = rank_;
    seen->attempt = outcome.attempt;
    seen->accum = one.row.key.accum;
    seen->seq = one.row.key.seq;
    evidence.add(*seen);
  }
  clock.engine.take(std::move(evidence));
  for (const Finding& finding : clock.engine.take_findings()) {
    if (finding.certain && !may_be_averaged(finding, window.rows, series))
      alert(finding, window.rows, series, alerts);
  }
}

bool StepChecks::may_be_averaged(const Finding& finding, const std::vector<Measured>& rows,
                                 const SeriesTable& series) const {
  return !is_alone_ && finding.check == Check::gap &&
         std::ranges::any_of(rows, [&](const Measured& one) {
           const Series& of_row = series.at(one.row.key.series);
           return of_row.kind == kind::kParamOrigin &&
                  of_row.replication == Replication::independent;
         });
}

void StepChecks::alert(const Finding& finding, const std::vector<Measured>& rows,
                       const SeriesTable& series, std::vector<Alert>& alerts) {
  Seen& seen = seen_[static_cast<std::size_t>(finding.check)];
  if (seen.steps++ == 0) {
    // A row of the first tensor, or of what the model was given; as near to what failed as there is
    // one.
    const Tensor* const tensor =
        finding.tensors.empty() ? nullptr : &parameters_.tensors()[finding.tensors.front()];
    for (const Measured& one : rows) {
      const Series& of_row = series.at(one.row.key.series);
      if (tensor != nullptr && (of_row.name != tensor->name || of_row.chunk != tensor->chunk)) {
        continue;
      }
      seen.first = one.row.key;
      if (of_row.kind == check_name(finding.check)) break;
      if (finding.check == Check::gap && of_row.kind == kind::kParamOrigin) break;
      if (finding.check == Check::update && of_row.kind == kind::kParamUpdated) break;
    }
  }
  if ((seen.steps & (seen.steps - 1)) != 0) return;
  Alert alert;
  alert.rule = check_name(finding.check);
  alert.key = seen.first;
  alert.count = seen.steps;
  alert.value = finding.value;
  if (!finding.tensors.empty()) {
    alert.message = tensors_text(parameters_.tensors(), finding) + ": ";
  }
  alert.message += finding.text;
  if (const std::string bound = bound_text(finding); !bound.empty()) alert.message += "; " + bound;
  alerts.push_back(std::move(alert));
}

}  // namespace trainmon::detect
