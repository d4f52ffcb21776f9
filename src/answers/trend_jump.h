// Where a number of a line jumps beside its trend. docs/detection.md defines it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace trainmon {

// A training drifts, and its lines with it: so a jump is measured beside one slope of both sides.
// What is usual for a line is what it did before.
struct TrendJump {
  static constexpr std::size_t kWindow = 24;    // rows on either side
  static constexpr std::size_t kEarlier = 112;  // rows before, that have places to compare

  std::size_t at = 0;  // the row behind it
  // Standard errors of the jump beside one slope of both sides, and of the difference of means. And
  // the most that any place before had of each.
  double errors = 0.0, earlier = 0.0;
  double errors_of_means = 0.0, earlier_of_means = 0.0;
  double jump = 0.0;
  double before = 0.0, after = 0.0;  // means

  // By itself; else with others in its step.
  bool is_clear() const;
};
// Of numbers in the order of steps.
std::vector<TrendJump> trend_jumps(std::span<const double> numbers);

}  // namespace trainmon
