// What a row of a tensor adds to the histories of its line.
#pragma once

#include <cstdint>
#include <optional>

#include "answers/history.h"
#include "trainmon/read.h"

namespace trainmon {

// Of integers but flags.
bool is_of_ids(DType dtype);
// Ids that a module inside the model is given: those of the model are inputs.
bool is_ids(const Series& series);

// What an optimizer keeps beside the moments that trainmon knows. It may change it in each tenth
// step alone, as an estimate of curvature.
bool is_own_state(const Series& series);

struct LineValue {
  RowPlace place = {};
  std::uint32_t series = 0;
  double norm = 0.0;  // history_value()
  std::int64_t elements = 0;
  // Of a floating-point input, an activation, its gradient or that of a weight, in units of the
  // root mean square.
  double mean = 0.0;
  double zeros = 0.0;  // of what may have a mean, the share of its elements; others: 0
  std::optional<double> largest = {};  // of ids that a module is given, which have no history
};
// nullopt where history_value() has none, and it is none of ids.
std::optional<LineValue> line_value(const ReadRow& row, const Series& series);

}  // namespace trainmon
