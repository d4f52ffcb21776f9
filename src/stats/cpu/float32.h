// Any element type as float32.
#pragma once

#include <cstdint>

#include "trainmon/tensor.h"

namespace trainmon::cpu {

// Writes data[0, n) to `out`, rounded to nearest where float32 is narrower or holds fewer integers.
// A NaN keeps its sign and the bits that fit and becomes a quiet one, as the processor converts
// (bfloat16: all bits). `data` needs no alignment; the caller keeps subnormal numbers (FloatMode).
void to_float32(DType dtype, const void* data, std::int64_t n, float* out);

}  // namespace trainmon::cpu
