// The same rule as the collector's: a taken window moves the step on, any other is tried again.
#include "model/timeline.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "model/state_fields.h"
#include "model/wrapping.h"

namespace trainmon {
namespace {

// Whether `next` is what a run that ends with `last` goes on with.
bool follows(const Outcome& last, const Outcome& next) {
  return last.window != std::numeric_limits<std::int64_t>::max() &&
         next.window == last.window + 1 && last.fate == Fate::taken && next.fate == Fate::taken &&
         next.step == wrapping_sum(last.step, 1) && next.attempt == last.attempt &&
         same_bits(next.loss_scale, last.loss_scale) && next.backwards == last.backwards;
}

}  // namespace

bool Timeline::Run::holds(std::int64_t window) const {
  return window >= first.window && wrapping_difference(window, first.window) < windows &&
         wrapping_difference(window, first.window) >= 0;
}

Outcome Timeline::Run::at(std::int64_t window) const {
  Outcome one = first;
  one.step = wrapping_sum(first.step, wrapping_difference(window, first.window));
  one.window = window;
  return one;
}

Outcome Timeline::Run::last() const {
  return at(first.window + windows - 1);
}

Timeline::Timeline(std::vector<std::int64_t> start_steps) : start_steps_(std::move(start_steps)) {}

void Timeline::add(const RecordBatch& batch) {
  for (const Outcome& outcome : batch.outcomes) add(outcome);
}

void Timeline::add(const Outcome& outcome) {
  Known& known = known_[outcome.optimizer];
  const auto after = known.runs.upper_bound(outcome.window);
  if (after != known.runs.begin()) {
    const auto before = std::prev(after);
    Run& run = before->second;
    if (follows(run.last(), outcome)) {
      ++run.windows;
      ++known.windows;
      return;
    }
    if (run.holds(outcome.window)) {  // what is said last counts
      const Run whole = run;
      const std::int64_t ahead = outcome.window - whole.first.window;
      const std::int64_t behind = whole.windows - ahead - 1;
      if (behind > 0) {
        const std::int64_t next = outcome.window + 1;
        known.runs.emplace_hint(after, next, Run{whole.at(next), behind});
      }
      if (ahead > 0) {
        run.windows = ahead;
      } else {
        known.runs.erase(before);
      }
      --known.windows;
    }
  }
  known.runs.emplace(outcome.window, Run{outcome});
  ++known.windows;
}

void Timeline::keep_last(std::size_t windows) {
  for (auto& [optimizer, known] : known_) {
    while (known.windows > windows) {
      const auto oldest = known.runs.begin();
      const Run run = oldest->second;
      const auto count =
          std::min<std::int64_t>(run.windows, static_cast<std::int64_t>(known.windows - windows));
      known.runs.erase(oldest);
      known.windows -= static_cast<std::size_t>(count);
      if (count == run.windows) continue;
      const std::int64_t first = run.first.window + count;
      known.runs.emplace(first, Run{run.at(first), run.windows - count});
    }
  }
}

std::int64_t Timeline::most_skipped_in_a_row() const {
  std::int64_t most = 0;
  for (const auto& [optimizer, known] : known_) {
    std::int64_t in_a_row = 0;
    for (const auto& [window, run] : known.runs) {
      in_a_row = run.first.fate == Fate::skipped ? in_a_row + run.windows : 0;
      most = std::max(most, in_a_row);
    }
  }
  return most;
}

std::string Timeline::skips_at_end() const {
  constexpr std::int64_t kTold = 3;
  for (const auto& [optimizer, known] : known_) {
    std::int64_t skips = 0, from_step = 0;
    for (auto run = known.runs.rbegin(); run != known.runs.rend(); ++run) {
      if (run->second.first.fate != Fate::skipped) break;
      skips += run->second.windows;
      from_step = run->second.first.step;
    }
    if (skips < kTold) continue;
    return "the last " + std::to_string(skips) + " of " + std::to_string(known.windows) +
           " tries of a step were skipped, from step " + std::to_string(from_step) + " on";
  }
  return "";
}

std::optional<Outcome> Timeline::recorded(std::int32_t optimizer, std::int64_t window) const {
  const auto known = known_.find(optimizer);
  if (known == known_.end()) return std::nullopt;
  const auto after = known->second.runs.upper_bound(window);
  if (after == known->second.runs.begin()) return std::nullopt;
  const Run& run = std::prev(after)->second;
  return run.holds(window) ? std::optional(run.at(window)) : std::nullopt;
}

std::optional<std::int64_t> Timeline::newest_window(std::int32_t optimizer) const {
  const auto known = known_.find(optimizer);
  if (known == known_.end() || known->second.runs.empty()) return std::nullopt;
  return known->second.runs.rbegin()->second.last().window;
}

Outcome Timeline::at(std::int32_t optimizer, std::int64_t window) const {
  Outcome guess{optimizer, window};
  const auto index = static_cast<std::size_t>(optimizer);
  const std::int64_t start =
      optimizer >= 0 && index < start_steps_.size() ? start_steps_[index] : 0;
  guess.step = wrapping_sum(start, window);
  const auto known = known_.find(optimizer);
  if (known == known_.end()) return guess;
  const auto after = known->second.runs.upper_bound(window);
  if (after == known->second.runs.begin()) {
    if (after == known->second.runs.end()) return guess;
    // What came before is not in the log, skipped windows among it.
    guess.step = std::min(guess.step, after->second.first.step);
    return guess;
  }
  const Run& run = std::prev(after)->second;
  if (run.holds(window)) return run.at(window);
  const Outcome before = run.last();
  const std::int64_t between = wrapping_difference(wrapping_difference(window, before.window), 1);
  const bool is_retry = before.fate != Fate::taken && between == 0;
  guess.step = wrapping_sum(wrapping_sum(before.step, before.fate == Fate::taken ? 1 : 0), between);
  guess.attempt = is_retry ? static_cast<std::int32_t>(wrapping_sum(before.attempt, 1)) : 0;
  return guess;
}

}  // namespace trainmon
