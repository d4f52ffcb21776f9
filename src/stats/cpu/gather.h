// Any element type as float64, with the elements that are not numbers counted and left out.
#pragma once

#include <cstdint>

#include "trainmon/stat.h"

namespace trainmon::cpu {

struct Gathered {
  std::int64_t finite = 0;  // how many were written
  std::int64_t nans = 0;
  std::int64_t pos_infs = 0;
  std::int64_t neg_infs = 0;
  std::int64_t zeros = 0;       // |x| < eps, compared exactly
  std::int64_t subnormals = 0;  // of the element type
};

// Writes the finite elements of data[0, n) to `out`, in order. 64-bit integers round to nearest.
Gathered gather(DType dtype, const void* data, std::int64_t n, double eps, double* out);

// Writes every element of data[0, n) to `out`, NaN and the infinities as they are.
void widen(DType dtype, const void* data, std::int64_t n, double* out);

}  // namespace trainmon::cpu
