// Optimizers that move their weights another distance than before.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "detect/window.h"
#include "model/mean_shift.h"

namespace trainmon::detect {

// Of optimizers without a known formula, for `update` tells of the others. Weights in bfloat16
// whose rounding is not stochastic any more hardly move, and a factor of an optimizer may be lost.
// The distance is that of all weights together, over the learning rate. Never certain, for the
// optimizer may have a schedule that it does not declare. By sketches alone. Says it once of an
// optimizer.
class StepSizes {
 public:
  void check(const Window& window, Findings& found);

 private:
  static constexpr ShiftRule kRule = {8, 7.5, 1.25, 2.5, 0.0, false, false};
  struct Step {
    std::int64_t step = 0;
    double distance = 0.0;  // its logarithm
    double gradient = 0.0;  // that of the norm of all gradients
  };
  struct Line {
    MeanShifts distances{kRule};
    std::deque<Step> last = {};
    std::optional<Finding> found = {};  // until no shift that overlaps with it goes further
  };
  // Whether gradients of the last steps explain a shift.
  static bool is_of_gradients(const Line& line, const MeanShifts::Found& shift);

  std::map<std::pair<std::int32_t, std::int32_t>, Line> lines_;  // rank, optimizer
};

}  // namespace trainmon::detect
