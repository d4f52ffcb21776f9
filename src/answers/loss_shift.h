// Where a logged loss shifts in one step, and by less than its norm's history tells.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace trainmon {

// docs/detection.md has the rule.
struct LossShift {
  std::size_t at = 0;  // the first value behind it
  double apart = 1.0;  // the factor, above 1, between the means of 8 values and of the 16 before
};

// The first shift of finite values in the order of steps; none among the first 64, or where a value
// is not above 0.
std::optional<LossShift> loss_shift(std::span<const double> values);

}  // namespace trainmon
