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
// The same state, and in `check` what the checks take of the block. `first` is the index of data[0]
// in the full tensor. Whole blocks at a multiple of kSketchBlock are read once.
RowState measure_checked_block(DType dtype, const void* data, std::int64_t n, const Thresholds& eps,
                               const Kernels& kernels, std::int64_t first, CheckSums& check);

}  // namespace trainmon::cpu
