// Biases whose gradient does not add up to what their module's output has, and did before.
// docs/detection.md has the rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "answers/line_shift.h"
#include "answers/line_value.h"
#include "trainmon/read.h"

namespace trainmon {

// The gradient of the bias of a linear layer, a convolution or a normalisation is that of its
// output, added up over samples. So both have one sum, but for the factor of clipping, which all
// biases of a step share. It is learned for which biases this holds. Lines of one rank, in the
// order of the log; more than one micro step and call add up. A copy goes on by itself.
class BiasSums {
 public:
  static constexpr std::int64_t kSteps = 48;     // before
  static constexpr double kTimesLargest = 16.0;  // as far off as in any of them

  explicit BiasSums(const std::vector<Series>& series);

  void add(const LineValue& value);
  // The first one of each bias, of the series of its gradient. Its value is the factor between the
  // two sums, in units of the usual one. Its `apart` is how far they are apart, in units of the
  // largest sum that a gradient of this norm can have.
  std::vector<LineShift> found() const;
  // Another rank begins.
  void forget();

 private:
  struct Bias {
    double of_output = 0.0;  // the sum in this step
    // Of the last gradient in this step; unreduced ones come first.
    double of_gradient = 0.0;
    double most = 0.0;  // that it could add up to
    bool is_unreduced = false;
    RowPlace place = {};
    std::uint32_t series = 0;
    std::int64_t steps = 0;
    double largest = 0.0;  // how far they were apart in these steps
    std::optional<LineShift> off = {};

    // Sums that cancel tell no factor.
    bool is_told() const;
    double apart(double factor) const;
  };
  struct Use {
    std::size_t bias = 0;  // the place in biases_, and 1; 0: none
    bool is_output = false;
    bool is_unreduced = false;
  };
  void close();
  std::optional<double> common_factor() const;

  std::vector<Use> uses_;  // by series
  std::vector<Bias> biases_;
  RowPlace step_ = {};
  bool is_open_ = false;
};

}  // namespace trainmon
