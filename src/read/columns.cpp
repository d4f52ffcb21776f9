#include "read/columns.h"

#include <algorithm>
#include <utility>

#include "model/state_fields.h"

namespace trainmon {

using namespace log_format;

namespace {

constexpr Columns kNonFinite = {column_of(&RowState::nans), column_of(&RowState::pos_infs),
                                column_of(&RowState::neg_infs)};
constexpr Columns kPlace = {Column::series, Column::flags, Column::window, Column::accum,
                            Column::call,   Column::seq,   Column::shape};

// Fields of the wide row that stand in a column; others follow from series and window.
constexpr std::pair<std::string_view, Column> kFields[] = {
    {"flags", Column::flags}, {"accum", Column::accum}, {"micro_step", Column::accum},
    {"call", Column::call},   {"seq", Column::seq},     {"shape", Column::shape},
};

// What derive() reads.
Columns state_columns(Stat stat) {
  Columns columns = kNonFinite;
  std::uint32_t fields = stat_table()[static_cast<std::size_t>(stat)].fields;
  each_state_field([&](auto field) {
    if ((fields & 1) != 0) columns |= {Column{field.column}};
    fields >>= 1;
  });
  return columns;
}

}  // namespace

Columns columns_of(Stat stat) {
  return columns_of({&stat, 1});
}

Columns columns_of(std::span<const Stat> stats) {
  Columns columns = kPlace;
  columns |= kNonFinite;
  for (const Stat stat : stats) columns |= state_columns(stat);
  return columns;
}

Columns columns_of_cells(std::span<const std::string_view> fields, std::span<const Stat> stats) {
  Columns columns = {Column::series, Column::window};
  for (const auto& [name, column] : kFields) {
    if (std::ranges::find(fields, name) != fields.end()) columns |= {column};
  }
  for (const Stat stat : stats) columns |= state_columns(stat);
  if (!stats.empty()) columns |= {Column::flags};  // which say what is an estimate
  return columns;
}

}  // namespace trainmon
