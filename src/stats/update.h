// The step that the formula of an optimizer takes from its state and its declared values.
#pragma once

#include <cstdint>

#include "stats/check.h"
#include "trainmon/stat.h"

namespace trainmon {

// The step u in `weight = weight * (1 - lr * decay) - lr * u`, without the decay that is
// decoupled from it. x, y and s are tensors of one shape.
//   n = a * x + b * y        u is n alone, where there is no s
//   d = c * sqrt(s) + eps    u = n / d
//
// The functions below make one.
struct UpdateFormula {
  TensorView x;
  TensorView y = {};  // y and s: none where their data is null
  TensorView s = {};
  double a = 1.0;
  double b = 0.0;
  double c = 1.0;
  double eps = 0.0;
};

// The state is that *after* the step; `gradient` is what the optimizer was given. `step` counts
// from 1. Decay that is added to the gradient is in the state. It is weight_decay of SGD,
// RMSprop, Adagrad, and of Adam, NAdam and RAdam where it is not decoupled. Where a formula takes
// the gradient too, the gradient must have the decay. For SGD the caller may add decay *
// sketch(weight before) to the sketch instead, for u is linear there. `a` of a gradient is to be
// negated for an optimizer that maximises. Formulas of PyTorch's optimizers; those whose rounding
// has no bound are not here. The variance about the mean (RMSprop, centered) cancels, and the
// sign of Lion jumps at zero.
//
// Adam, AdamW; `exp_avg_sq` is max_exp_avg_sq with amsgrad.
UpdateFormula adam_update(const TensorView& exp_avg, const TensorView& exp_avg_sq, double step,
                          double beta1, double beta2, double eps);
// SGD without momentum: the gradient. SGD and RMSprop with momentum: the buffer.
UpdateFormula plain_update(const TensorView& gradient_or_buffer);
// RMSprop without momentum.
UpdateFormula rmsprop_update(const TensorView& gradient, const TensorView& square_avg, double eps);
UpdateFormula adagrad_update(const TensorView& gradient, const TensorView& sum, double step,
                             double lr_decay, double eps);
// NAdam; `mu_product` is that after the step.
UpdateFormula nadam_update(const TensorView& gradient, const TensorView& exp_avg,
                           const TensorView& exp_avg_sq, double step, double mu_product,
                           double beta1, double beta2, double eps, double momentum_decay);
UpdateFormula radam_update(const TensorView& exp_avg, const TensorView& exp_avg_sq, double step,
                           double beta1, double beta2, double eps);

// In which u is computed: float64 where one of the tensors is, float32 otherwise.
DType dtype_of(const UpdateFormula& formula);

// The state of u, with its sum of squares, and its check. u is computed in dtype_of(): within five
// roundings of that type, where the optimizer's own are. Nothing of the size of the tensor is
// allocated. `first` as for measure(). Throws std::invalid_argument when a tensor is not on the
// CPU, not of a floating-point type, or of another shape than x.
RowState measure(const UpdateFormula& formula, std::int64_t first, Check& check,
                 double eps = kDefaultEps, int threads = 1);

}  // namespace trainmon
