// How two states become one: the same formula on the host and on a device.
#pragma once

#include <cmath>
#include <cstdint>

#include "model/both.h"
#include "model/state_fields.h"
#include "model/wrapping.h"
#include "trainmon/stat.h"

namespace trainmon {

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
  each_state_field([&](auto field) {
    using Type = typename decltype(field)::Type;
    if constexpr (field.law == MergeLaw::add || field.law == MergeLaw::moment) {
      state.*field.member *= static_cast<Type>(times);
    }
  });
}

// Brings what is stored divided by 4^exponent to another exponent.
TRAINMON_BOTH void rescale(RowState& state, std::int32_t exponent) {
  if (state.exponent == exponent) return;
  const int shift = 2 * (state.exponent - exponent);
  each_state_field([&](auto field) {
    if constexpr (field.degree == 2) {
      state.*field.member = ldexp(state.*field.member, shift);
    }
  });
  state.exponent = exponent;
}

// Takes over what describes the finite elements of `from`: everything but the counts.
TRAINMON_BOTH void take_values(RowState& into, const RowState& from) {
  each_state_field([&](auto field) {
    if constexpr (!field.is_count) into.*field.member = from.*field.member;
  });
}

// Adds the finite elements of `from`; both have some.
TRAINMON_BOTH void merge_values(RowState& into, RowState from) {
  // A state of zeros only fits every exponent; otherwise the larger one loses nothing that counts.
  std::int32_t exponent = into.exponent > from.exponent ? into.exponent : from.exponent;
  if (into.absmax == 0.0) exponent = from.exponent;
  if (from.absmax == 0.0) exponent = into.exponent;
  rescale(into, exponent);
  rescale(from, exponent);

  const auto n_into = static_cast<double>(into.finite());
  const auto n_from = static_cast<double>(from.finite());
  const double n = n_into + n_from;
  double delta = from.mean - into.mean;
  if (exponent != 0) delta = ldexp(from.mean, -exponent) - ldexp(into.mean, -exponent);
  into.m2 += from.m2 + delta * delta * (n_into * (n_from / n));
  each_state_field([&](auto field) {
    if constexpr (field.law == MergeLaw::add && !field.is_count) {
      into.*field.member += from.*field.member;
    } else if constexpr (field.law == MergeLaw::least) {
      into.*field.member = lesser_of(into.*field.member, from.*field.member);
    } else if constexpr (field.law == MergeLaw::greatest) {
      into.*field.member = greater_of(into.*field.member, from.*field.member);
    }
  });
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
  if (from.finite() > 0) {
    if (into.finite() > 0) {
      merge_values(into, from);
    } else {
      take_values(into, from);
    }
  }
  each_state_field([&](auto field) {
    if constexpr (field.is_count) {
      into.*field.member = wrapping_sum(into.*field.member, from.*field.member);
    }
  });
}

}  // namespace trainmon
