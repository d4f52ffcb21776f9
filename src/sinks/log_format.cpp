// What segments are called, and where each column of a log lives in a row.
#include "sinks/log_format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace trainmon::log_format {

std::string segment_name(int number) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "log-%06d.tmlog", number);
  return name.data();
}

std::optional<int> segment_number(std::string_view name) {
  const std::string text(name);
  int number = -1, length = 0;
  const bool is_segment = std::sscanf(text.c_str(), "log-%9d.tmlog%n", &number, &length) == 1 &&
                          number >= 0 && static_cast<std::size_t>(length) == text.size();
  return is_segment ? std::optional(number) : std::nullopt;
}

std::int64_t integer_of(const Row& row, Column column) {
  std::int64_t value = 0;
  with_integer(column, [&](const auto& member) { value = static_cast<std::int64_t>(member(row)); });
  return value;
}

double RowState::*float_member(Column column) {
  double RowState::*found = &RowState::sum;
  each_state_field([&](auto field) {
    if constexpr (!field.is_integer) {
      if (column == Column{field.column}) found = field.member;
    }
  });
  return found;
}

double float_of(const Row& row, Column column) {
  return row.state.*float_member(column);
}

std::optional<double> implied_value(const RowState& state, Column column) {
  if (std::isnan(state.min) || std::isnan(state.max)) return std::nullopt;
  const std::int64_t finite = state.finite();
  if (column == kMean) {
    return finite > 0 ? state.sum / static_cast<double>(finite) : 0.0;
  }
  if (column == kAbsmax) {
    return finite > 0 ? std::max(std::abs(state.min), std::abs(state.max)) : 0.0;
  }
  return std::nullopt;
}

}  // namespace trainmon::log_format
