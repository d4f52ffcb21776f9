// Any element type as float32.
#pragma once

#include <cstdint>

#include "trainmon/tensor.h"

namespace trainmon::cpu {

// Writes data[0, n) to `out`, rounded to nearest where float32 is narrower or holds fewer integers;
// bits of a NaN that fit are kept, as torch's .float() keeps them. `data` needs no alignment; not
// for float32 itself. n is at most kBlock; the caller keeps subnormal numbers (FloatMode).
void to_float32(DType dtype, const void* data, std::int64_t n, float* out);

}  // namespace trainmon::cpu
