// Where each column of a log lives in a row.
#include "sinks/log_format.h"

#include <algorithm>
#include <cmath>

namespace trainmon::log_format {

std::int64_t integer_of(const Row& row, Column column) {
  switch (column) {
    case Column::series:
      return row.key.series;
    case Column::flags:
      return row.key.flags;
    case Column::window:
      return row.key.window;
    case Column::accum:
      return row.key.accum;
    case Column::call:
      return row.key.call;
    case Column::seq:
      return static_cast<std::int64_t>(row.key.seq);
    case Column::count:
      return row.state.count;
    case Column::nans:
      return row.state.nans;
    case Column::pos_infs:
      return row.state.pos_infs;
    case Column::neg_infs:
      return row.state.neg_infs;
    case Column::zeros:
      return row.state.zeros;
    case Column::subnormals:
      return row.state.subnormals;
    case Column::exponent:
      return row.state.exponent;
    default:
      return 0;
  }
}

void set_integer(Row& row, Column column, std::int64_t value) {
  switch (column) {
    case Column::series:
      row.key.series = static_cast<SeriesId>(value);
      break;
    case Column::flags:
      row.key.flags = static_cast<std::uint32_t>(value);
      break;
    case Column::window:
      row.key.window = value;
      break;
    case Column::accum:
      row.key.accum = static_cast<std::int32_t>(value);
      break;
    case Column::call:
      row.key.call = static_cast<std::int32_t>(value);
      break;
    case Column::seq:
      row.key.seq = static_cast<std::uint64_t>(value);
      break;
    case Column::count:
      row.state.count = value;
      break;
    case Column::nans:
      row.state.nans = value;
      break;
    case Column::pos_infs:
      row.state.pos_infs = value;
      break;
    case Column::neg_infs:
      row.state.neg_infs = value;
      break;
    case Column::zeros:
      row.state.zeros = value;
      break;
    case Column::subnormals:
      row.state.subnormals = value;
      break;
    case Column::exponent:
      row.state.exponent = static_cast<std::int32_t>(value);
      break;
    default:
      break;
  }
}

namespace {

// The member of a state that a float column stands for.
double RowState::*float_member(Column column) {
  switch (column) {
    case Column::mean:
      return &RowState::mean;
    case Column::m2:
      return &RowState::m2;
    case Column::sum_sq:
      return &RowState::sum_sq;
    case Column::min:
      return &RowState::min;
    case Column::max:
      return &RowState::max;
    case Column::absmax:
      return &RowState::absmax;
    default:
      return &RowState::sum;
  }
}

}  // namespace

double float_of(const Row& row, Column column) {
  return row.state.*float_member(column);
}

void set_float(Row& row, Column column, double value) {
  row.state.*float_member(column) = value;
}

std::optional<double> implied_value(const RowState& state, Column column) {
  if (std::isnan(state.min) || std::isnan(state.max)) return std::nullopt;
  // Unsigned, because a file may hold counts that no tensor has.
  const auto n = [](std::int64_t count) { return static_cast<std::uint64_t>(count); };
  const auto finite = static_cast<std::int64_t>(n(state.count) - n(state.nans) - n(state.pos_infs) -
                                                n(state.neg_infs));
  if (column == Column::mean) {
    return finite > 0 ? state.sum / static_cast<double>(finite) : 0.0;
  }
  if (column == Column::absmax) {
    return finite > 0 ? std::max(std::abs(state.min), std::abs(state.max)) : 0.0;
  }
  return std::nullopt;
}

}  // namespace trainmon::log_format
