// Fast kernels where all elements are finite floating-point numbers of ordinary size, the gathering
// path for the rest.
#include "stats/cpu/block.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "model/merge.h"
#include "stats/check_keys.h"
#include "stats/cpu/check_block.h"
#include "stats/cpu/float32.h"
#include "stats/cpu/gather.h"

namespace trainmon::cpu {
namespace {

// Below this share of the sum of squares, the second moment left by subtraction has lost digits
// and is summed again about the mean. The share is larger where the squares were summed in
// float32.
constexpr double kCancelled = 0x1p-10;
constexpr double kCancelledNarrow = 0x1p-3;

double second_moment(const BlockSums& sums, double n) {
  return sums.sum_sq - sums.sum * (sums.sum / n);
}
double second_moment(const CentredSums& sums, double n) {
  return std::max(0.0, sums.sum_sq - sums.sum * (sums.sum / n));
}

// Everything except the counts of non-finite elements; `centred` sums again about a point.
template <class Centred>
RowState state_of(const BlockSums& sums, std::int64_t n, Centred centred,
                  double cancelled = kCancelled) {
  RowState state;
  const double size = static_cast<double>(n);
  state.count = n;
  state.sum = sums.sum;
  state.mean = sums.sum / size;
  state.sum_sq = sums.sum_sq;
  state.m2 = second_moment(sums, size);
  if (state.m2 < cancelled * sums.sum_sq) state.m2 = second_moment(centred(state.mean), size);
  state.zeros = sums.zeros;
  state.subnormals = sums.subnormals;
  state.min = sums.min + 0.0;  // which zero was met first must not show: -0.0 becomes 0.0
  state.max = sums.max + 0.0;
  state.absmax = std::max(std::fabs(sums.min), std::fabs(sums.max));
  return state;
}

// float64 numbers whose squares over- or underflow. They are summed divided by 2^exponent, which
// is exact except where a number is too small to count beside the largest.
RowState measure_scaled(double* values, std::int64_t n, const BlockSums& unscaled,
                        const Kernels& kernels) {
  const double absmax = std::max(std::fabs(unscaled.min), std::fabs(unscaled.max));
  const std::int32_t exponent = std::ilogb(absmax);
  // In two steps, since 2^1074 is no float64.
  const double half = std::ldexp(1.0, -(exponent / 2));
  const double rest = std::ldexp(1.0, -(exponent - exponent / 2));
  for (std::int64_t i = 0; i < n; ++i) values[i] = values[i] * half * rest;
  RowState state = state_of(kernels.float64(values, n, 0), n, [&](double centre) {
    return kernels.centred_float64(values, n, centre);
  });
  state.exponent = exponent;
  state.sum = std::ldexp(state.sum, exponent);
  state.mean = std::ldexp(state.mean, exponent);
  state.min = unscaled.min + 0.0;
  state.max = unscaled.max + 0.0;
  state.absmax = absmax;
  return state;
}

// Whether squares of float64 numbers, and their sums, stay in its range.
bool in_range(const BlockSums& sums) {
  const double absmax = std::max(std::fabs(sums.min), std::fabs(sums.max));
  return absmax == 0.0 || (absmax > 0x1p-400 && absmax < 0x1p400);
}

RowState measure_values(double* values, std::int64_t n, const Kernels& kernels) {
  const BlockSums sums = kernels.float64(values, n, 0);
  if (!in_range(sums)) return measure_scaled(values, n, sums, kernels);
  return state_of(sums, n,
                  [&](double centre) { return kernels.centred_float64(values, n, centre); });
}

RowState measure_gathered(DType dtype, const void* data, std::int64_t n, const Thresholds& eps,
                          const Kernels& kernels) {
  double values[kBlock];
  RowState state = gather(dtype, data, n, eps.exact, values);
  const std::int64_t finite = state.finite();
  if (finite > 0) take_values(state, measure_values(values, finite, kernels));
  return state;
}

std::uint32_t float32_up(double eps) {
  float up = static_cast<float>(eps);
  if (static_cast<double>(up) < eps) {
    up = std::nextafter(up, std::numeric_limits<float>::infinity());
  }
  return std::bit_cast<std::uint32_t>(up);
}

// The smallest float16 number that is not below eps > 0, or infinity.
std::int16_t float16_up(double eps) {
  constexpr std::uint32_t kInfinity = 0x7c00;
  if (eps > 65504.0) return kInfinity;
  if (eps < 0x1p-14) return static_cast<std::int16_t>(std::ceil(eps * 0x1p24));
  const std::uint32_t wide = float32_up(eps) + 0x1fffu - (112u << 23);
  return static_cast<std::int16_t>(std::min(wide >> 13, kInfinity));
}

// `sums` has the kernels that sum, `kernels` those that sum again.
template <class Sums>
[[gnu::always_inline]] inline RowState measure_with(DType dtype, const void* data, std::int64_t n,
                                                    const Thresholds& eps, const Kernels& kernels,
                                                    const Sums& sums_of) {
  const auto narrow = [&](const BlockSums& sums) {
    const auto centred = [&](double centre) {
      float numbers[kBlock];
      to_float32(dtype, data, n, numbers);
      return kernels.centred_float32(numbers, n, centre);
    };
    return std::isfinite(sums.sum_sq) ? state_of(sums, n, centred, kCancelledNarrow)
                                      : measure_gathered(dtype, data, n, eps, kernels);
  };
  switch (dtype) {
    case DType::float64: {
      const BlockSums sums = sums_of.float64(data, n, eps.float64);
      if (!std::isfinite(sums.sum_sq) || !in_range(sums)) break;
      return state_of(sums, n,
                      [&](double centre) { return kernels.centred_float64(data, n, centre); });
    }
    case DType::float32: {
      const BlockSums sums = sums_of.float32(data, n, eps.float32);
      if (!std::isfinite(sums.sum_sq)) break;
      return state_of(sums, n,
                      [&](double centre) { return kernels.centred_float32(data, n, centre); });
    }
    case DType::bfloat16:
      return narrow(sums_of.bfloat16(data, n, eps.bfloat16));
    case DType::float16:
      return narrow(sums_of.float16(data, n, eps.float16));
    case DType::float8_e4m3fn:
      return narrow(kernels.float8_e4m3fn(data, n, eps.float8_e4m3fn));
    case DType::float8_e5m2:
      return narrow(kernels.float8_e5m2(data, n, eps.float16));
    default:
      break;
  }
  return measure_gathered(dtype, data, n, eps, kernels);
}

// The kernels with checks, called as those without.
struct CheckedSums {
  const Kernels& kernels;
  std::int64_t first;
  CheckSums& check;
  bool& exact;  // whether the lanes of `check` have a meaning

  BlockSums float64(const void* data, std::int64_t, std::int64_t threshold) const {
    return seen(kernels.checked_float64(data, threshold, first, check));
  }
  BlockSums float32(const void* data, std::int64_t, std::int32_t threshold) const {
    return seen(kernels.checked_float32(data, threshold, first, check));
  }
  BlockSums bfloat16(const void* data, std::int64_t, std::int16_t threshold) const {
    return seen(kernels.checked_bfloat16(data, threshold, first, check));
  }
  BlockSums float16(const void* data, std::int64_t, std::int16_t threshold) const {
    return seen(kernels.checked_float16(data, threshold, first, check));
  }

 private:
  BlockSums seen(const BlockSums& sums) const {
    exact = std::isfinite(sums.sum_sq);
    return sums;
  }
};

}  // namespace

Thresholds::Thresholds(double eps)
    : exact(eps), float64(0), float32(0), bfloat16(0), float16(0), float8_e4m3fn(0) {
  if (!(eps > 0.0)) return;
  float64 = std::bit_cast<std::int64_t>(eps);
  const std::uint32_t bits = float32_up(eps);
  float32 = static_cast<std::int32_t>(bits);
  bfloat16 = static_cast<std::int16_t>((bits + 0xffffu) >> 16);
  float16 = float16_up(eps);
  float8_e4m3fn = float16_up(std::max(eps * 0x1p-8, 0x1p-1000));  // not 0
}

RowState measure_block(DType dtype, const void* data, std::int64_t n, const Thresholds& eps,
                       const Kernels& kernels) {
  return measure_with(dtype, data, n, eps, kernels, kernels);
}

RowState measure_checked_block(DType dtype, const void* data, std::int64_t n, const Thresholds& eps,
                               const Kernels& kernels, std::int64_t first, CheckSums& check) {
  const bool fused = n == kBlock && first % kSketchBlock == 0 &&
                     (dtype == DType::float64 || dtype == DType::float32 ||
                      dtype == DType::bfloat16 || dtype == DType::float16);
  if (!fused) {
    const RowState state = measure_block(dtype, data, n, eps, kernels);
    check = {fingerprint_of(dtype, data, n, first), {}};
    add_sketch(dtype, data, n, first, check.lanes);
    return state;
  }
  bool exact = false;
  const RowState state =
      measure_with(dtype, data, n, eps, kernels, CheckedSums{kernels, first, check, exact});
  if (exact) return state;
  std::fill_n(check.lanes, kSketchLanes, 0.0);
  add_sketch(dtype, data, n, first, check.lanes);
  return state;
}

}  // namespace trainmon::cpu
