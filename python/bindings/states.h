// States as Python sees them: a row of fourteen float64, in the order of RowState's documentation.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "trainmon/stat.h"

namespace trainmon {

inline constexpr std::size_t kColumns = 14;
using States =
    nanobind::ndarray<const double, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

inline void write_state(const RowState& state, double* row) {
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const std::array<double, kColumns> values = {real(state.count),
                                               real(state.nans),
                                               real(state.pos_infs),
                                               real(state.neg_infs),
                                               real(state.zeros),
                                               real(state.subnormals),
                                               state.sum,
                                               state.mean,
                                               state.m2,
                                               state.sum_sq,
                                               state.min,
                                               state.max,
                                               state.absmax,
                                               static_cast<double>(state.exponent)};
  std::copy(values.begin(), values.end(), row);
}

inline RowState read_state(const double* row) {
  const auto whole = [&](std::size_t i) { return static_cast<std::int64_t>(row[i]); };
  RowState state;
  state.count = whole(0);
  state.nans = whole(1);
  state.pos_infs = whole(2);
  state.neg_infs = whole(3);
  state.zeros = whole(4);
  state.subnormals = whole(5);
  state.sum = row[6];
  state.mean = row[7];
  state.m2 = row[8];
  state.sum_sq = row[9];
  state.min = row[10];
  state.max = row[11];
  state.absmax = row[12];
  state.exponent = static_cast<std::int32_t>(row[13]);
  return state;
}

inline void check_columns(const States& states) {
  if (states.shape(1) != kColumns) throw nanobind::value_error("states must have 14 columns");
}

}  // namespace trainmon
