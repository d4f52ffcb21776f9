// The block kernels: what they compute, and the table of them for each instruction-set level.
#pragma once

#include <cstdint>

#include "trainmon/stat.h"

namespace trainmon::cpu {

// Elements per block, the leaf of every sum. A power of two; small enough for a second look at a
// block to come from the first-level cache.
inline constexpr std::int64_t kBlock = 4096;

// Sums over one block. Every level adds in the same order: sixteen interleaved float64 lanes, then
// a fixed tree. When an element is NaN or infinite sum_sq is not finite and the rest has no
// meaning.
struct BlockSums {
  double sum;
  double sum_sq;
  double min;
  double max;
  std::int64_t zeros;       // elements below the threshold; 0 from the float64 kernels
  std::int64_t subnormals;  // 0 from the float64 kernels
};

// Second moment about a point close to the mean.
struct CentredSums {
  double sum;     // of x - centre
  double sum_sq;  // of (x - centre)^2
};

// `data` needs no alignment; 1 <= n <= kBlock. Bytes past the block are prefetched, never read.
// `threshold` is the bit pattern of the smallest number of the format that is not below eps.
struct Kernels {
  BlockSums (*float32)(const void* data, std::int64_t n, std::uint32_t threshold);
  BlockSums (*bfloat16)(const void* data, std::int64_t n, std::uint32_t threshold);
  BlockSums (*float64)(const double* data, std::int64_t n);
  CentredSums (*centred_float32)(const void* data, std::int64_t n, double centre);
  CentredSums (*centred_bfloat16)(const void* data, std::int64_t n, double centre);
  CentredSums (*centred_float64)(const double* data, std::int64_t n, double centre);
};

extern const Kernels kBaselineKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

// The kernels of cpu_level().
const Kernels& kernels();

}  // namespace trainmon::cpu
