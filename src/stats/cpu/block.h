// The state of one block of elements: the leaf of every measurement on the CPU.
#pragma once

#include <cstdint>

#include "stats/cpu/kernels.h"
#include "trainmon/stat.h"

namespace trainmon::cpu {

// eps as each format compares with it: rounded up to the format once, so that comparing bits is
// comparing exactly.
struct Thresholds {
  explicit Thresholds(double eps);
  double exact;
  std::int64_t float64;
  std::int32_t float32;
  std::int16_t bfloat16;
  std::int16_t float16;
  std::int16_t float8_e4m3fn;  // of eps / 2^8, in float16
};

// `data` holds `n` elements in a row, 1 <= n <= kBlock, and needs no alignment.
RowState measure_block(DType dtype, const void* data, std::int64_t n, const Thresholds& eps,
                       const Kernels& kernels);

}  // namespace trainmon::cpu
