// Steps that take the gradients of another number of backwards than those before.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "detect/checks.h"

namespace trainmon::detect {

// A gradient that is not cleared, or is cleared too late, is one more backward of the step. Never
// certain, for a training may choose how many it accumulates. Says it once of each optimizer.
class BackwardCounts {
 public:
  void check(const Window& window, Findings& found);

 private:
  struct Count {
    std::int32_t usual = -1;  // as in enough steps in a row
    std::int32_t last = -1;
    std::int64_t alike = 0;  // steps in a row with the last one
    std::int64_t since = 0;  // the first of them
    bool is_said = false;
  };
  std::map<std::pair<std::int32_t, std::int32_t>, Count> counts_;  // rank, optimizer
};

}  // namespace trainmon::detect
