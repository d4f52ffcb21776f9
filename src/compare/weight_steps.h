// What each step did to the weights of two runs.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "compare/row_pairs.h"

namespace trainmon {

bool is_weight(std::string_view kind);

// The largest one; NaN is none.
double largest(const std::array<double, kValueStats>& differences);

// Of a pair of weights: the pair of the step before, nullptr at the first, and the furthest that
// either run moved in one of the last steps, relative to the tensor. Before the first step a weight
// before the step has not moved; what one after the step did is taken from the next.
struct WeightStep {
  const RowPair* before = nullptr;
  double moved = 0.0;
};

// One for each pair; empty ones for what is no weight. Pointers are into `pairs`.
std::vector<WeightStep> weight_steps(const ComparedRun& a, const std::vector<RowPair>& pairs);

// Relative differences; of weights, what this step did: the difference without the one that was
// there before. What lies within the resolution of the files is none. `scale` as of
// relative_differences().
std::array<double, kValueStats> differences_of(const RowPair& pair, const WeightStep& step,
                                               double resolution, double scale = 0.0);

}  // namespace trainmon
