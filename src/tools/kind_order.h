// The order in which a fault passes through a step.
#pragma once

#include <string_view>

namespace trainmon {

// Weights before the step 0, forward 1, backward 2, collectives 3, reduced gradients 4, optimizer
// state and all else 5, weights after the step 6. Weights before the step are what the forward
// used, so they come before everything else of the step, whatever the backward they were read
// after.
int moment_of(std::string_view kind);

}  // namespace trainmon
