// Weights that stay where they are, though they have gradients and others move.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "detect/window.h"

namespace trainmon::detect {

// Of weights whose step no formula tells. What moves them may be an optimizer that is not watched,
// or a loop that copies them from masters. Where a formula tells the steps of others, they may be
// in no group of the optimizer. Never certain, for a program may freeze a weight and go on
// computing its gradient. Says it once of each weight and start.
class UnmovedWeights {
 public:
  void check(const Window& window, Findings& found);

 private:
  struct Seen {
    int moved = 0;  // steps in a row, before those in which it stayed
    int still = 0;  // steps in a row
    std::int64_t since = 0;
    bool has_moved = false;
    bool had_formula = false;  // then `Untrained` tells it
    bool is_said = false;
  };
  // A weight with a gradient, from the step before to this one.
  struct Weight {
    const Observation* now;
    double ratio;  // the norm of the gradient by that of the weight
    bool moved;
    bool has_formula;
  };
  static bool may_round_away(const Weight& one, const std::vector<Weight>& all);
  void check(const Window& window, const std::vector<Weight>& weights, Findings& found);

  std::map<std::pair<std::int32_t, std::uint32_t>, Seen> seen_;  // rank, tensor
};

}  // namespace trainmon::detect
