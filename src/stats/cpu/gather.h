// Any element type as float64, with the elements that are not numbers counted and left out.
#pragma once

#include <cstdint>

#include "trainmon/stat.h"

namespace trainmon::cpu {

// Writes the finite elements of data[0, n) to `out`, in order, and returns the counts of all.
// That is a state without values, whose finite() is how many were written. A zero has |x| < eps,
// compared exactly. 64-bit integers round to nearest.
RowState gather(DType dtype, const void* data, std::int64_t n, double eps, double* out);

// Writes every element of data[0, n) to `out`, NaN and the infinities as they are.
void widen(DType dtype, const void* data, std::int64_t n, double* out);

}  // namespace trainmon::cpu
