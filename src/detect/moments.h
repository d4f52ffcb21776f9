// How a step makes the moments of Adam.
#pragma once

#include <optional>

#include "detect/window.h"

namespace trainmon::detect {

// exp_avg or exp_avg_sq of one parameter and rank.
struct MomentRows {
  const Observation* now;
  const Observation* before;  // nullptr: zeros
  const Observation* gradient;
  const Observation* weight;  // that the step found; nullptr: none was recorded
};
// nullopt where its group is of no formula that is known, or a decay of the weights may be part of
// the gradient. exp_avg needs the weight then, and exp_avg_sq cannot tell.
std::optional<Distance> distance_of_moment(const Window& window, const MomentRows& moment);

}  // namespace trainmon::detect
