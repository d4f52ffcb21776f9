// What two tensors of the same sizes say together, element by element.
#pragma once

#include "model/histogram.h"
#include "trainmon/tensor.h"

namespace trainmon {

// How far two tensors point the same way: (mean of sign(a) sign(b) + 1) / 2 over their elements.
// 1 for equal signs, 0 for opposite ones; an element that is zero or NaN in either counts one half;
// 1 for empty tensors. CPU tensors of the same sizes, any layout and dtype; throws
// std::invalid_argument otherwise.
double sign_agreement(const TensorView& a, const TensorView& b);

// Adam's numbers for one step: taken (its `step` state, at least 1) and the constants of its group.
struct AdamStep {
  double step = 1.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};
// Of every element, with m^ = exp_avg / (1 - beta1^step) and v^ = exp_avg_sq / (1 - beta2^step).
// `update` is m^ / (sqrt(v^) + eps), `ratio` is m^ / sqrt(v^), each in 30 bins on [-1, 1].
// (Kingma and Ba 2015, algorithm 1.) CPU tensors of the same sizes; throws std::invalid_argument
// otherwise.
struct AdamHistograms {
  Histogram update;
  Histogram ratio;
};
AdamHistograms adam_histograms(const TensorView& exp_avg, const TensorView& exp_avg_sq,
                               const AdamStep& at);

}  // namespace trainmon
