// How two states become one: the same formula on the host and on a device.
#pragma once

#include <cmath>
#include <cstdint>

#include "model/both.h"
#include "trainmon/stat.h"

namespace trainmon {

// Unsigned inside, for a damaged file may hold counts that no tensor has.
TRAINMON_BOTH std::int64_t add_counts(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
TRAINMON_BOTH std::int64_t finite_count(const RowState& s) {
  const auto n = static_cast<std::uint64_t>(s.count) - static_cast<std::uint64_t>(s.nans) -
                 static_cast<std::uint64_t>(s.pos_infs) - static_cast<std::uint64_t>(s.neg_infs);
  return static_cast<std::int64_t>(n);
}
TRAINMON_BOTH double lesser_of(double a, double b) {
  return b < a ? b : a;
}
TRAINMON_BOTH double greater_of(double a, double b) {
  return a < b ? b : a;
}
// False for NaN and the infinities.
TRAINMON_BOTH bool is_finite(double x) {
  return x - x == 0.0;
}

// The state of elements that each count so often.
TRAINMON_BOTH void multiply(RowState& state, std::int64_t times) {
  if (times == 1) return;
  state.count *= times;
  state.nans *= times;
  state.pos_infs *= times;
  state.neg_infs *= times;
  state.zeros *= times;
  state.subnormals *= times;
  state.sum *= static_cast<double>(times);
  state.m2 *= static_cast<double>(times);
  state.sum_sq *= static_cast<double>(times);
}

// Brings m2 and sum_sq to another exponent.
TRAINMON_BOTH void rescale(RowState& state, std::int32_t exponent) {
  if (state.exponent == exponent) return;
  const int shift = 2 * (state.exponent - exponent);
  state.m2 = ldexp(state.m2, shift);
  state.sum_sq = ldexp(state.sum_sq, shift);
  state.exponent = exponent;
}

// Adds the finite elements of `from`; both have some.
TRAINMON_BOTH void merge_values(RowState& into, RowState from) {
  // A state of zeros only fits every exponent; otherwise the larger one loses nothing that counts.
  std::int32_t exponent = into.exponent > from.exponent ? into.exponent : from.exponent;
  if (into.absmax == 0.0) exponent = from.exponent;
  if (from.absmax == 0.0) exponent = into.exponent;
  rescale(into, exponent);
  rescale(from, exponent);

  const auto n_into = static_cast<double>(finite_count(into));
  const auto n_from = static_cast<double>(finite_count(from));
  const double n = n_into + n_from;
  double delta = from.mean - into.mean;
  if (exponent != 0) delta = ldexp(from.mean, -exponent) - ldexp(into.mean, -exponent);
  into.m2 += from.m2 + delta * delta * (n_into * (n_from / n));
  into.sum_sq += from.sum_sq;
  into.min = lesser_of(into.min, from.min);
  into.max = greater_of(into.max, from.max);
  into.absmax = greater_of(into.absmax, from.absmax);
  into.sum += from.sum;
  if (is_finite(into.sum)) {
    into.mean = into.sum / n;
  } else {
    const double mean = into.mean * (n_into / n) + from.mean * (n_from / n);
    into.mean = mean < into.min ? into.min : lesser_of(into.max, mean);
    into.sum = into.mean * n;
  }
}

// Adds the elements of `from` to `into` (Chan, Golub, LeVeque 1979 for m2).
TRAINMON_BOTH void merge_states(RowState& into, const RowState& from) {
  if (finite_count(from) > 0) {
    if (finite_count(into) > 0) {
      merge_values(into, from);
    } else {
      into.sum = from.sum;
      into.mean = from.mean;
      into.m2 = from.m2;
      into.sum_sq = from.sum_sq;
      into.min = from.min;
      into.max = from.max;
      into.absmax = from.absmax;
      into.exponent = from.exponent;
    }
  }
  into.count = add_counts(into.count, from.count);
  into.nans = add_counts(into.nans, from.nans);
  into.pos_infs = add_counts(into.pos_infs, from.pos_infs);
  into.neg_infs = add_counts(into.neg_infs, from.neg_infs);
  into.zeros = add_counts(into.zeros, from.zeros);
  into.subnormals = add_counts(into.subnormals, from.subnormals);
}

}  // namespace trainmon
