// Elements of any type and layout, one by one: for chunks with a NaN or an infinity, with numbers
// out of range, or with gaps. The same on the host, where tests run it.
#pragma once

#include <cmath>
#include <cstdint>

#include "model/both.h"
#include "model/merge.h"
#include "stats/cuda/element.h"
#include "stats/cuda/sums.h"
#include "stats/cuda/work.h"

namespace trainmon::cuda {

// Where element i of a layout with gaps lies, in elements.
TRAINMON_BOTH std::int64_t place_of(const Gaps& gaps, std::int64_t i) {
  std::int64_t at = 0;
  for (int d = 0; d < gaps.ndim; ++d) {
    at += i % gaps.sizes[d] * gaps.strides[d];
    i /= gaps.sizes[d];
  }
  return at;
}

// Elements [begin, begin + n) of any type and layout, one by one.
struct Chunk {
  const std::byte* data;  // of the tensor
  const Gaps* gaps;       // nullptr: one run
  DType dtype;
  std::int64_t begin;
  std::int64_t n;

  TRAINMON_BOTH const void* at(std::int64_t i) const {
    const std::int64_t place = gaps == nullptr ? begin + i : place_of(*gaps, begin + i);
    return data + place * item_bytes(dtype);
  }
};

// A first look that also finds NaN and the infinities, without sums.
struct Census {
  std::int64_t nans = 0;
  std::int64_t pos_infs = 0;
  std::int64_t neg_infs = 0;
  std::int64_t zeros = 0;
  std::int64_t subnormals = 0;
  double min = kInfinity;
  double max = -kInfinity;
};
TRAINMON_BOTH void add(Census& into, const Census& from) {
  into.nans += from.nans;
  into.pos_infs += from.pos_infs;
  into.neg_infs += from.neg_infs;
  into.zeros += from.zeros;
  into.subnormals += from.subnormals;
  into.min = lesser_of(into.min, from.min);
  into.max = greater_of(into.max, from.max);
}
TRAINMON_BOTH Census census_of(const Chunk& chunk, int thread, double eps) {
  Census census;
  for (std::int64_t i = thread; i < chunk.n; i += kThreads) {
    const Element x = element(chunk.dtype, chunk.at(i), eps);
    if (x.value != x.value) {
      ++census.nans;
    } else if (!is_finite(x.value)) {
      ++(x.value > 0.0 ? census.pos_infs : census.neg_infs);
    } else {
      census.zeros += x.zero ? 1 : 0;
      census.subnormals += x.subnormal ? 1 : 0;
      census.min = lesser_of(census.min, x.value);
      census.max = greater_of(census.max, x.value);
    }
  }
  return census;
}

// What squares are divided by (4^exponent) so that they neither over- nor underflow.
TRAINMON_BOTH std::int32_t exponent_of(double absmax) {
  const bool safe = absmax == 0.0 || (absmax > 0x1p-400 && absmax < 0x1p400);
  return safe ? 0 : ilogb(absmax);
}
// x / 2^exponent, in two steps, since 2^1074 is no float64.
TRAINMON_BOTH double scaled(double x, std::int32_t exponent) {
  return ldexp(ldexp(x, -(exponent / 2)), -(exponent - exponent / 2));
}
// Sums of (x / 2^exponent - centre) over the finite elements.
TRAINMON_BOTH Centred careful_sums(const Chunk& chunk, int thread, std::int32_t exponent,
                                   double centre) {
  Centred sums;
  for (std::int64_t i = thread; i < chunk.n; i += kThreads) {
    const double x = element(chunk.dtype, chunk.at(i), 0.0).value;
    if (!is_finite(x)) continue;
    const double away = (exponent == 0 ? x : scaled(x, exponent)) - centre;
    sums.sum += away;
    sums.sum_sq = fma(away, away, sums.sum_sq);
  }
  return sums;
}
// `sums` about 0 and `centred` about their mean.
TRAINMON_BOTH RowState careful_state(const Census& census, std::int64_t n, std::int32_t exponent,
                                     const Centred& sums, const Centred& centred) {
  RowState state;
  state.count = n;
  state.nans = census.nans;
  state.pos_infs = census.pos_infs;
  state.neg_infs = census.neg_infs;
  state.zeros = census.zeros;
  state.subnormals = census.subnormals;
  const std::int64_t finite = state.finite();
  if (finite == 0) return state;
  state.sum_sq = sums.sum_sq;
  state.m2 = second_moment(centred, finite);
  state.sum = ldexp(sums.sum, exponent);
  state.mean = ldexp(sums.sum / static_cast<double>(finite), exponent);
  state.min = census.min + 0.0;
  state.max = census.max + 0.0;
  state.absmax = greater_of(absolute(state.min), absolute(state.max));
  state.exponent = exponent;
  return state;
}

}  // namespace trainmon::cuda
