// How large what was summed to a gradient is, where the gradient itself does not tell.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "compare/row_pairs.h"

namespace trainmon {

// For each tensor of `run` a number of the module that it belongs to: a parameter to the one that
// holds it, an input or output to the one that computes.
std::vector<std::uint32_t> modules_of(const ComparedRun& run);

// The larger root mean square of both runs; 0 where it is not known or not finite.
double root_mean_square(const RowPair& pair);

// Gradients of parameters and what optimizers keep of them. A gradient that is zero but for
// rounding (of a bias before a normalisation, of the bias of keys) holds as much of it as the other
// gradients of its module, which were summed from the same output gradients (docs/compare.md).
class GradientScales {
 public:
  // `modules` as modules_of(a) gives them, which pairs are of.
  GradientScales(const ComparedRun& a, const std::vector<std::uint32_t>& modules,
                 const std::vector<RowPair>& pairs);
  // Root mean square per element below which this row must not be judged by its own size; 0 for
  // rows of anything else and of sources without sizes.
  double at(const RowPair& pair) const;
  // Whether the pair is a gradient that was recorded as such.
  bool is_gradient(const RowPair& pair) const;

 private:
  // kind, step, attempt, place, rank; then the module, -1: the median of the model.
  using Place =
      std::tuple<int, std::int64_t, std::int32_t, std::int32_t, std::int32_t, std::int64_t>;
  Place place(const RowPair& pair, std::int64_t module) const;

  struct Scale {
    double largest = 0.0;
    int members = 0;
  };
  const std::vector<std::uint32_t> modules_;
  std::vector<int> kinds_;  // of tensors; -1: no gradient
  std::vector<char> is_gradient_;
  std::map<Place, Scale> scales_;
};

}  // namespace trainmon
