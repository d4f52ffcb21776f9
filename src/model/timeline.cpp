// The same rule as the collector's: a taken window moves the step on, any other is tried again.
#include "model/timeline.h"

#include <algorithm>
#include <iterator>
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

std::string Timeline::skips_at_end() const {
  constexpr std::ptrdiff_t kTold = 3;
  for (const auto& [optimizer, known] : outcomes_) {
    const auto is_taken = [](const auto& one) { return one.second.fate != Fate::skipped; };
    const auto last_taken = std::find_if(known.rbegin(), known.rend(), is_taken);
    const std::ptrdiff_t skips = std::distance(known.rbegin(), last_taken);
    if (skips < kTold) continue;
    return "the last " + std::to_string(skips) + " of " + std::to_string(known.size()) +
           " tries of a step were skipped, from step " +
           std::to_string(std::prev(last_taken)->second.step) + " on";
  }
  return "";
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
  if (after == known.begin()) {  // what came before is not in the log, skipped windows among it
    guess.step = std::min(guess.step, after->second.step);
    return guess;
  }
  const Outcome& before = std::prev(after)->second;
  if (before.window == window) return before;
  const std::int64_t between = wrapping_difference(wrapping_difference(window, before.window), 1);
  const bool is_retry = before.fate != Fate::taken && between == 0;
  guess.step = wrapping_sum(wrapping_sum(before.step, before.fate == Fate::taken ? 1 : 0), between);
  guess.attempt = is_retry ? static_cast<std::int32_t>(wrapping_sum(before.attempt, 1)) : 0;
  return guess;
}

}  // namespace trainmon
