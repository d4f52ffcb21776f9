// The kernels of the probe on one block: signs, counts of intervals, the lanes of the 64-bit
// hash. Their table for each instruction-set level is here, too.
#pragma once

#include <cstdint>

namespace trainmon::cpu {

// The 64-bit hash (trainmon/probe.h defines it) works on stripes of this many words, one per lane.
inline constexpr int kHashLanes = 32;
inline constexpr std::uint64_t kHashFactor = 0x9E3779B97F4A7C15u;
inline constexpr int kHashShift = 29;

// `data` needs no alignment. 1 <= n <= kBlock except where said. The same bits on every level. The
// caller keeps subnormal numbers (FloatMode); the signs of 16 and 32 bits do not depend on it.
struct ProbeKernels {
  // Bit i % 8 of positive[i / 8] is x > 0, of negative[i / 8] x < 0; ceil(n / 8) bytes each, unused
  // bits 0. `negative` may be null.
  void (*signs_float64)(const void* data, std::int64_t n, unsigned char* positive,
                        unsigned char* negative);
  void (*signs_float32)(const void* data, std::int64_t n, unsigned char* positive,
                        unsigned char* negative);
  // bfloat16 and float16, told apart by `infinity`, the format's bits of it.
  void (*signs_16bit)(const void* data, std::int64_t n, std::int16_t infinity,
                      unsigned char* positive, unsigned char* negative);
  void (*float32_of_bfloat16)(const void* data, std::int64_t n, float* out);
  // Adds to at_most[i] the number of elements x <= bounds[i]; returns how many are 0.
  std::int64_t (*count_float32)(const void* data, std::int64_t n, const float* bounds,
                                std::int64_t bound_count, std::int64_t* at_most);
  std::int64_t (*count_bfloat16)(const void* data, std::int64_t n, const float* bounds,
                                 std::int64_t bound_count, std::int64_t* at_most);
  std::int64_t (*count_float64)(const void* data, std::int64_t n, const double* bounds,
                                std::int64_t bound_count, std::int64_t* at_most);
  // Takes whole stripes of 8 * kHashLanes bytes into `lanes`.
  void (*hash)(const void* data, std::int64_t stripes, std::uint64_t* lanes);
};

extern const ProbeKernels kBaselineProbeKernels;
extern const ProbeKernels kAvx2ProbeKernels;
extern const ProbeKernels kAvx512ProbeKernels;

// The kernels of cpu_level().
const ProbeKernels& probe_kernels();

}  // namespace trainmon::cpu
