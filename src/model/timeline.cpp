// The same rule as the collector's: a taken window moves the step on, any other is tried again.
#include "model/timeline.h"

#include <utility>

namespace trainmon {
namespace {

// A damaged log may hold any number, and signed overflow is undefined; these wrap.
constexpr std::int64_t sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
constexpr std::int64_t difference(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

}  // namespace

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
  guess.step = sum(start, window);
  const auto of_optimizer = outcomes_.find(optimizer);
  if (of_optimizer == outcomes_.end()) return guess;
  const auto& known = of_optimizer->second;
  auto after = known.upper_bound(window);
  if (after == known.begin()) return guess;
  const Outcome& before = std::prev(after)->second;
  if (before.window == window) return before;
  const std::int64_t between = difference(difference(window, before.window), 1);
  const bool is_retry = before.fate != Fate::taken && between == 0;
  guess.step = sum(sum(before.step, before.fate == Fate::taken ? 1 : 0), between);
  guess.attempt = is_retry ? static_cast<std::int32_t>(sum(before.attempt, 1)) : 0;
  return guess;
}

}  // namespace trainmon
