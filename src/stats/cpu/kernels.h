// The block kernels: what they compute, and the table of them for each instruction-set level.
#pragma once

#include <cstdint>

namespace trainmon::cpu {

// Elements per block, the leaf of every sum. A power of two; small enough for a second look at a
// block to come from the first-level cache.
inline constexpr std::int64_t kBlock = 4096;

// Sums over one block, in the same order on every level. float32 and float64 numbers are summed
// in sixteen interleaved float64 lanes, then by a fixed tree. Narrower formats are summed in
// thirty-two lanes of float32, where their squares are exact. These go into such float64 lanes
// every 1,024 elements (bfloat16) or 256. An element may be NaN or infinite, or a bfloat16 number
// may have a square out of float32's range. Then sum_sq is not finite and the rest has no
// meaning.
struct BlockSums {
  double sum;
  double sum_sq;
  double min;
  double max;
  std::int64_t zeros;       // elements below the threshold
  std::int64_t subnormals;  // of the format
};

// Second moment about a point close to the mean.
struct CentredSums {
  double sum;     // of x - centre
  double sum_sq;  // of (x - centre)^2
};

// Of a whole block, for the checks (stats/check.h): the fingerprint, and the sums of the sketch's
// lanes.
struct CheckSums {
  std::uint64_t fingerprint;
  double lanes[16];
};

// The factors of the fingerprint (stats/check_keys.h) as the kernels read them.
struct FingerprintFactors {
  alignas(64) std::int32_t columns[256];
  std::uint32_t rows[8];  // the lower and the upper half
};
extern const FingerprintFactors kFingerprintFactors;

// How far ahead of what they read the kernels prefetch, in bytes; no result depends on it.
extern const std::int64_t kPrefetchBytes;

// `data` needs no alignment; 1 <= n <= kBlock. Bytes past the block are prefetched, never read.
// `threshold` is the bit pattern of the smallest number of the format that is not below eps. For
// the 8-bit formats it is that of the float16 number that the kernel takes them for.
struct Kernels {
  BlockSums (*float32)(const void* data, std::int64_t n, std::int32_t threshold);
  BlockSums (*float64)(const void* data, std::int64_t n, std::int64_t threshold);
  BlockSums (*bfloat16)(const void* data, std::int64_t n, std::int16_t threshold);
  BlockSums (*float16)(const void* data, std::int64_t n, std::int16_t threshold);
  BlockSums (*float8_e4m3fn)(const void* data, std::int64_t n, std::int16_t threshold);
  BlockSums (*float8_e5m2)(const void* data, std::int64_t n, std::int16_t threshold);
  // The same of kBlock elements, and what the checks take of them. `first` is the index of data[0]
  // in the full tensor, a multiple of kSketchBlock. Where sum_sq is not finite, the lanes of
  // `check` have no meaning; its fingerprint always has.
  BlockSums (*checked_float32)(const void* data, std::int32_t threshold, std::int64_t first,
                               CheckSums& check);
  BlockSums (*checked_float64)(const void* data, std::int64_t threshold, std::int64_t first,
                               CheckSums& check);
  BlockSums (*checked_bfloat16)(const void* data, std::int16_t threshold, std::int64_t first,
                                CheckSums& check);
  BlockSums (*checked_float16)(const void* data, std::int16_t threshold, std::int64_t first,
                               CheckSums& check);
  CentredSums (*centred_float32)(const void* data, std::int64_t n, double centre);
  CentredSums (*centred_float64)(const void* data, std::int64_t n, double centre);
};

extern const Kernels kBaselineKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

// The kernels of cpu_level().
const Kernels& kernels();

}  // namespace trainmon::cpu
