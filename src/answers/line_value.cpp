#include "answers/line_value.h"

#include <algorithm>
#include <cmath>

#include "model/first_bad.h"
#include "model/kinds.h"

namespace trainmon {

bool is_of_ids(DType dtype) {
  return dtype >= DType::int64 && dtype != DType::bool8;
}

bool is_ids(const Series& series) {
  return series.kind == kind::kActv && is_of_ids(series.dtype);
}

bool is_own_state(const Series& series) {
  return known_kind(series.kind) == nullptr && series.kind != kLogged;
}

std::optional<LineValue> line_value(const ReadRow& row, const Series& series) {
  if (is_ids(series)) {
    const double of_ids = derive(Stat::norm, row.state);
    if (row.state.count == 0 || (row.flags & flag::kNotReady) != 0 || of_ids == 0.0) return {};
    LineValue value = {row, row.series, of_ids, row.state.count, 0.0};
    value.largest = derive(Stat::max, row.state);
    return value;
  }
  const std::optional<double> norm = history_value(row, series, Stat::norm);
  if (!norm) return std::nullopt;
  LineValue value = {row, row.series, *norm, row.state.count, 0.0};
  const bool has_mean = series.kind == kind::kInput || series.kind == kind::kActv ||
                        series.kind == kind::kActvGrad || series.kind == kind::kGradReduced ||
                        series.kind == kind::kGradUnreduced;
  if (has_mean && std::isfinite(*norm) && *norm > 0.0) {
    const auto count = static_cast<double>(row.state.count);
    value.mean = derive(Stat::mean, row.state) * std::sqrt(count) / *norm;
  }
  if (has_mean) {
    value.zeros = static_cast<double>(row.state.zeros) / static_cast<double>(row.state.count);
  }
  return value;
}

}  // namespace trainmon
