// Steps that take the gradients of another number of backwards than those before.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "detect/checks.h"
#include "detect/steady_count.h"

namespace trainmon::detect {

// A gradient that is not cleared, or is cleared too late, is one more backward of the step. Never
// certain, for a training may choose how many it accumulates. Says it once of each optimizer.
class BackwardCounts {
 public:
  void check(const Window& window, Findings& found);

 private:
  std::map<std::pair<std::int32_t, std::int32_t>, SteadyCount> counts_;  // rank, optimizer
};

}  // namespace trainmon::detect
