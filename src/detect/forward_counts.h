// Steps in which the whole model goes forward more often, or less often, than in those before.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "detect/steady_count.h"
#include "detect/window.h"

namespace trainmon::detect {

// Forwards in eval() or under no_grad have no row: one more is a gradient that should not be. Never
// certain, for a training may begin to do so. Says it once of each model chunk, of all ranks.
class ForwardCounts {
 public:
  void check(const Window& window, Findings& found);

 private:
  std::map<std::pair<std::int32_t, std::int32_t>, SteadyCount> counts_;  // rank, chunk
};

}  // namespace trainmon::detect
