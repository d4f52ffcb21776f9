// The same rule as the collector's: a taken window moves the step on, any other is tried again.
#include "model/timeline.h"

#include <utility>

#include "model/wrapping.h"

namespace trainmon {

Timeline::Timeline(std::vector<std::int64_t> start_steps) : start_steps_(std::move(start_steps)) {}

void Timeline::add(const RecordBatch& batch) {
  for (const Outcome& outcome : batch.outcomes) {
    outcomes_[outcome.optimizer][outcome.window] = outcome;
  }
}

void Timeline::keep_last(std::size_t windows) {
  for (auto& [optimizer, known] : outcomes_) {
    while (known.size() > windows) known.erase(known.begin());
  }
}

Outcome Timeline::at(std::int32_t optimizer, std::int64_t window) const {
  Outcome guess{optimizer, window};
  const auto index = static_cast<std::size_t>(optimizer);
  const std::int64_t start =
      optimizer >= 0 && index < start_steps_.size() ? start_steps_[index] : 0;
  guess.step = wrapping_sum(start, window);
  const auto of_optimizer = outcomes_.find(optimizer);
  if (of_optimizer == outcomes_.end()) return guess;
  const auto& known = of_optimizer->second;
  auto after = known.upper_bound(window);
  if (after == known.begin()) return guess;
  const Outcome& before = std::prev(after)->second;
  if (before.window == window) return before;
  const std::int64_t between = wrapping_difference(wrapping_difference(window, before.window), 1);
  const bool is_retry = before.fate != Fate::taken && between == 0;
  guess.step = wrapping_sum(wrapping_sum(before.step, before.fate == Fate::taken ? 1 : 0), between);
  guess.attempt = is_retry ? static_cast<std::int32_t>(wrapping_sum(before.attempt, 1)) : 0;
  return guess;
}

}  // namespace trainmon
