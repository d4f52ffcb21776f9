// The state of a tensor that still has the loss scale in it, without.
#pragma once

#include "trainmon/stat.h"

namespace trainmon {

// The state of x / scale, from one that was measured with `scale` times the eps it is to have.
// `subnormals` stays that of x. `scale` must be positive and finite.
inline void divide(RowState& state, double scale) {
  state.sum /= scale;
  state.mean /= scale;
  state.m2 = state.m2 / scale / scale;
  state.sum_sq = state.sum_sq / scale / scale;
  state.min /= scale;
  state.max /= scale;
  state.absmax /= scale;
}

}  // namespace trainmon
