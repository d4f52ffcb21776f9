// States as Python sees them: a row of float64 each, in the order of kStateFields.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>

#include "model/state_fields.h"

namespace trainmon {

inline constexpr std::size_t kColumns = kStateFieldCount;
inline constexpr std::size_t kCheckColumns = 13;  // whether there is one, 4 pieces, 8 sums
using States =
    nanobind::ndarray<const double, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

inline void write_state(const RowState& state, double* row) {
  each_state_field([&](auto field) { *row++ = static_cast<double>(state.*field.member); });
}

inline RowState read_state(const double* row) {
  RowState state;
  each_state_field([&](auto field) {
    state.*field.member = static_cast<typename decltype(field)::Type>(*row++);
  });
  return state;
}

inline void check_columns(const States& states) {
  if (states.shape(1) == kColumns) return;
  throw nanobind::value_error(
      ("states must have " + std::to_string(kColumns) + " columns").c_str());
}

}  // namespace trainmon
