// The manual's rule over the agreements of one rank.
#pragma once

#include <vector>

#include "directions/directions_compare.h"

namespace trainmon {

// Each parameter's first bad step: by step, then in backward order (the reverse of `parameters`).
std::vector<Suspicion> suspicions(const std::vector<std::int64_t>& steps,
                                  const std::vector<std::vector<Agreement>>& agreements);

}  // namespace trainmon
