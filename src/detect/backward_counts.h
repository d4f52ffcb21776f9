// Steps that take the gradients of another number of backwards than those before, or that do not
// come any more.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "detect/steady_count.h"
#include "detect/window.h"

namespace trainmon::detect {

// A gradient that is not cleared, or is cleared too late, is one more backward of the step. Never
// certain, for a training may choose how many it accumulates. Says it once of each optimizer.
class BackwardCounts {
 public:
  void check(const Window& window, Findings& found);
  // What a rank has had since its last step, as the record ends. More may follow.
  void note_open(const StepEvidence& evidence);
  void end(Findings& found) const;

 private:
  struct Open {
    std::int32_t restart = 0;
    std::int64_t step = 0;
    std::int32_t backwards = 0;
  };
  std::map<std::pair<std::int32_t, std::int32_t>, SteadyCount> counts_;  // rank, optimizer
  std::map<std::int32_t, Open> open_;                                    // by rank
};

}  // namespace trainmon::detect
