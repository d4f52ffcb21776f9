// The state of a tensor that still has the loss scale in it, without.
#pragma once

#include "model/state_fields.h"
#include "trainmon/stat.h"

namespace trainmon {

// The state of x / scale, from one that was measured with `scale` times the eps it is to have.
// `subnormals` stays that of x. `scale` must be positive and finite.
inline void divide(RowState& state, double scale) {
  each_state_field([&](auto field) {
    if constexpr (field.degree > 0) state.*field.member /= scale;
    if constexpr (field.degree > 1) state.*field.member /= scale;
  });
}

}  // namespace trainmon
