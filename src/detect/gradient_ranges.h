// Ranks whose gradients are never as large as those of other ranks.
#pragma once

#include <cstdint>
#include <map>

#include "detect/rank_ranges.h"
#include "detect/window.h"

namespace trainmon::detect {

// Looks at the first steps of a start, and at ranks that are given parts of one batch. The norm is
// that of all gradients of an optimizer, before their reduction. Never certain, for each rank may
// have data of its own.
class GradientRanges {
 public:
  void check(const Window& window, Findings& found);

 private:
  struct Run {
    RankRanges ranges;
    std::int64_t steps = 0;
    std::int64_t since = 0;
    bool has_ended = false;  // said, or no rank is apart
  };
  std::map<std::int32_t, Run> runs_;  // by optimizer
};

}  // namespace trainmon::detect
