// How large what was summed to a gradient is, where the gradient itself does not tell.
#pragma once

#include <cstdint>
#include <vector>

#include "compare/step_pairs.h"

namespace trainmon {

// Kinds that have a scale: gradients of parameters and what optimizers keep of them.
bool has_gradient_scale(std::string_view kind);

// The larger root mean square of both rows; 0 where it is not known or not finite.
double root_mean_square(const ComparedRow& a, const ComparedRow& b);

// A gradient may be zero but for rounding (of a bias before a normalisation, of the bias of
// keys). It holds as much rounding as the other gradients of its module: all were summed from the
// same output gradients (docs/compare.md). Of one step at a time.
class GradientScales {
 public:
  // The pairs of a step; `kinds` and `modules` are those of tensors of A by number, a kind of -1
  // has no scale. To be called where pairs are others than before.
  void set_pairs(const std::vector<RowPair>& pairs, const std::vector<ComparedRow>& a,
                 const std::vector<int>& kinds, const std::vector<std::uint32_t>& modules);
  // The values of the step.
  void measure(const std::vector<RowPair>& pairs, const std::vector<ComparedRow>& a,
               const std::vector<ComparedRow>& b);
  // Root mean square per element below which the pair must not be judged by its own size. That
  // size is size_of(). The result is 0 for rows of anything else and of sources without sizes.
  double at(std::size_t pair) const;
  double size_of(std::size_t pair) const { return sizes_[pair]; }

 private:
  struct Scale {
    double largest = 0.0;
    int members = 0;
  };
  struct Place {
    int module = -1;  // of modules_; -1: no gradient
    int model = -1;   // of models_
  };
  std::vector<Place> places_;                // of pairs
  std::vector<double> sizes_;                // of pairs
  std::vector<Scale> modules_;               // of one kind, attempt, place, rank and module
  std::vector<std::vector<double>> models_;  // the sizes of all modules
  std::vector<double> medians_;
};

}  // namespace trainmon
