// The one source of the check kernels, compiled once per instruction-set level by the file that
// defines TRAINMON_VECTOR_BYTES and TRAINMON_KERNELS and includes it.
//
// Nothing here, and nothing that it includes, may use an inline function of another header. The
// linker would keep one copy of it, perhaps the one compiled for AVX-512, for the whole program.

#include "stats/cpu/check_kernels.h"
#include "stats/cpu/check_lanes.h"
#include "stats/cpu/half_kernels.h"
#include "stats/cpu/update_lanes.h"

namespace trainmon::cpu {
namespace {

std::uint64_t fingerprint(const void* data, std::int64_t rows, std::uint64_t first_row) {
  const auto* p = static_cast<const char*>(data);
  const char* const end = p + rows * kRowBytes;
  FingerprintLanes lanes(first_row / kFingerprintRows);
  int row = static_cast<int>(first_row % kFingerprintRows);
  constexpr int kGroupBytes = kFingerprintRows * kRowBytes;
  while (p < end) {
    if (row == 0 && end - p >= kGroupBytes) {
      lanes.add<kFingerprintRows>(p, 0);
      p += kGroupBytes;
    } else {
      for (; row < kFingerprintRows && p < end; ++row, p += kRowBytes) lanes.add<1>(p, row);
      row = 0;
    }
    lanes.end_group();
  }
  return lanes.finish();
}

// A block of the sketch, or a part of it, is summed from 0 in ascending order and then added.
template <class Number>
void sketch(const void* data, std::int64_t n, std::int64_t first, double* lanes) {
  const auto* p = static_cast<const Number*>(data);
  const Number* const end = p + n;
  while (p < end) {
    std::int64_t at = first % kSketchBlock;
    const std::int64_t left = kSketchBlock - at;
    const Number* const block_end = end - p < left ? end : p + left;
    const double sign = sketch_block_sign(static_cast<std::uint64_t>(first / kSketchBlock));
    first += block_end - p;
    const auto step_sign = [&] { return kSketchMinus >> at / kStep & 1 ? -1.0 : 1.0; };
    double sum[kLanes] = {};
    const auto add_single = [&] {
      sum[at % kLanes] += static_cast<double>(load<Number>(p++)) * step_sign();
      ++at;
    };
    while (p < block_end && at % kLanes != 0) add_single();
    Doubles part[kParts];
    __builtin_memcpy(part, sum, sizeof part);
    for (; p + kLanes <= block_end; p += kLanes, at += kLanes) {
      const Doubles same = Doubles{} + step_sign();
      for (int k = 0; k < kParts; ++k) {
        part[k] = add_exact_product(part[k], widen(p + k * kDoubles), same);
      }
    }
    __builtin_memcpy(sum, part, sizeof sum);
    while (p < block_end) add_single();
    for (int k = 0; k < kLanes; ++k) lanes[k] += sum[k] * sign;
  }
}

void float32_of_float16(const void* data, std::int64_t n, float* out) {
  const auto widen_halves = [](const std::int16_t* p) {
    const Floats x = Float16::widen(p, 0);
#if !defined(__x86_64__) || TRAINMON_VECTOR_BYTES == 16
    // Infinities and NaN, which the kernels of the state leave to others.
    using Integers = Vector<std::int32_t>;
    const Integers bits = Float16::widen_bits(p);
    const Integers magnitude = bits & 0x7fff;
    const Integers beyond =
        ((magnitude << 13) + (224 << 23)) | (bits & std::numeric_limits<std::int32_t>::min());
    return (Floats)(magnitude < 0x7c00 ? (Integers)x : beyond);
#else
    return x;
#endif
  };
  const auto* p = static_cast<const std::int16_t*>(data);
  std::int64_t i = 0;
  for (; i + kFloats <= n; i += kFloats) {
    const Floats x = widen_halves(p + i);
    __builtin_memcpy(out + i, &x, sizeof x);
  }
  if (i == n) return;
  std::int16_t rest[kFloats] = {};
  __builtin_memcpy(rest, p + i, static_cast<std::size_t>(n - i) * sizeof *p);
  const Floats x = widen_halves(rest);
  __builtin_memcpy(out + i, &x, static_cast<std::size_t>(n - i) * sizeof *out);
}

}  // namespace

const CheckKernels TRAINMON_KERNELS = {fingerprint,        sketch<float>, sketch<double>,
                                       float32_of_float16, update<float>, update<double>};

}  // namespace trainmon::cpu
