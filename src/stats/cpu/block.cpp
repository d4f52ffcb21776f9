// Fast kernels where all elements are finite float32 or bfloat16, the gathering path for the rest.
#include "stats/cpu/block.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "stats/cpu/gather.h"

namespace trainmon::cpu {
namespace {

// Below this share of the sum of squares, the second moment left by subtraction has lost digits
// and is summed again about the mean.
constexpr double kCancelled = 0x1p-10;

double second_moment(const BlockSums& sums, double n) {
  return sums.sum_sq - sums.sum * (sums.sum / n);
}
double second_moment(const CentredSums& sums, double n) {
  return std::max(0.0, sums.sum_sq - sums.sum * (sums.sum / n));
}

// Everything except the counts of non-finite elements; `centred` sums again about a point.
template <class Centred>
RowState state_of(const BlockSums& sums, std::int64_t n, Centred centred) {
  RowState state;
  const double size = static_cast<double>(n);
  state.count = n;
  state.sum = sums.sum;
  state.mean = sums.sum / size;
  state.sum_sq = sums.sum_sq;
  state.m2 = second_moment(sums, size);
  if (state.m2 < kCancelled * sums.sum_sq) state.m2 = second_moment(centred(state.mean), size);
  state.zeros = sums.zeros;
  state.subnormals = sums.subnormals;
  state.min = sums.min + 0.0;  // which zero was met first must not show: -0.0 becomes 0.0
  state.max = sums.max + 0.0;
  state.absmax = std::max(std::fabs(sums.min), std::fabs(sums.max));
  return state;
}

// float64 numbers whose squares over- or underflow: summed divided by 2^exponent, which is exact
// except where a number is too small to count beside the largest.
RowState measure_scaled(double* values, std::int64_t n, const BlockSums& unscaled,
                        const Kernels& kernels) {
  const double absmax = std::max(std::fabs(unscaled.min), std::fabs(unscaled.max));
  const std::int32_t exponent = std::ilogb(absmax);
  // In two steps, since 2^1074 is no float64.
  const double half = std::ldexp(1.0, -(exponent / 2));
  const double rest = std::ldexp(1.0, -(exponent - exponent / 2));
  for (std::int64_t i = 0; i < n; ++i) values[i] = values[i] * half * rest;
  RowState state = state_of(kernels.float64(values, n), n, [&](double centre) {
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

RowState measure_values(double* values, std::int64_t n, const Kernels& kernels) {
  const BlockSums sums = kernels.float64(values, n);
  const double absmax = std::max(std::fabs(sums.min), std::fabs(sums.max));
  // Only float64 has numbers beyond.
  const bool safe = absmax == 0.0 || (absmax > 0x1p-400 && absmax < 0x1p400);
  if (!safe) return measure_scaled(values, n, sums, kernels);
  return state_of(sums, n,
                  [&](double centre) { return kernels.centred_float64(values, n, centre); });
}

RowState measure_gathered(DType dtype, const void* data, std::int64_t n, const Thresholds& eps,
                          const Kernels& kernels) {
  double values[kBlock];
  const Gathered got = gather(dtype, data, n, eps.exact, values);
  RowState state;
  if (got.finite > 0) state = measure_values(values, got.finite, kernels);
  state.count = n;
  state.nans = got.nans;
  state.pos_infs = got.pos_infs;
  state.neg_infs = got.neg_infs;
  state.zeros = got.zeros;
  state.subnormals = got.subnormals;
  return state;
}

}  // namespace

Thresholds::Thresholds(double eps) : exact(eps), float32(0), bfloat16(0) {
  if (!(eps > 0.0)) return;
  float up = static_cast<float>(eps);
  if (static_cast<double>(up) < eps) {
    up = std::nextafter(up, std::numeric_limits<float>::infinity());
  }
  float32 = std::bit_cast<std::uint32_t>(up);
  bfloat16 = (float32 + 0xffffu) >> 16;
}

RowState measure_block(DType dtype, const void* data, std::int64_t n, const Thresholds& eps,
                       const Kernels& kernels) {
  if (dtype == DType::float32) {
    const BlockSums sums = kernels.float32(data, n, eps.float32);
    if (std::isfinite(sums.sum_sq)) {
      return state_of(sums, n,
                      [&](double centre) { return kernels.centred_float32(data, n, centre); });
    }
  } else if (dtype == DType::bfloat16) {
    const BlockSums sums = kernels.bfloat16(data, n, eps.bfloat16);
    if (std::isfinite(sums.sum_sq)) {
      return state_of(sums, n,
                      [&](double centre) { return kernels.centred_bfloat16(data, n, centre); });
    }
  }
  return measure_gathered(dtype, data, n, eps, kernels);
}

}  // namespace trainmon::cpu
