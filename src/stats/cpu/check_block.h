// Fingerprint and sketch of one block of elements of any type, anywhere in its full tensor.
#pragma once

#include <cstdint>

#include "trainmon/tensor.h"

namespace trainmon::cpu {

// `data` holds n elements in a row, 1 <= n <= kBlock, and needs no alignment; data[0] has the index
// `first` in the full tensor.
std::uint64_t fingerprint_of(DType dtype, const void* data, std::int64_t n, std::int64_t first);
// Adds the elements to the sixteen lanes of the sketch. 64-bit integers round to nearest first. The
// caller keeps subnormal numbers (FloatMode).
void add_sketch(DType dtype, const void* data, std::int64_t n, std::int64_t first, double* lanes);

}  // namespace trainmon::cpu
