#include "read/columns.h"

#include <algorithm>
#include <utility>

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
  static constexpr Column kCount = column_of(&RowState::count),
                          kExponent = column_of(&RowState::exponent);
  static constexpr Column kSum = column_of(&RowState::sum), kM2 = column_of(&RowState::m2),
                          kSumSq = column_of(&RowState::sum_sq), kMin = column_of(&RowState::min),
                          kMax = column_of(&RowState::max);
  Columns columns = kNonFinite;
  switch (stat) {
    case Stat::norm:
      columns |= {kSumSq, kExponent};
      break;
    case Stat::min:
      columns |= {kMin, kCount};
      break;
    case Stat::max:
      columns |= {kMax, kCount};
      break;
    case Stat::mean:
      columns |= {kSum, kMean, kCount};
      break;
    case Stat::absmax:
      columns |= {kMin, kMax, kAbsmax, kCount};
      break;
    case Stat::std:
      columns |= {kM2, kCount, kExponent};
      break;
    case Stat::zeros:
      columns |= {column_of(&RowState::zeros), kCount};
      break;
    case Stat::subnormals:
      columns |= {column_of(&RowState::subnormals)};
      break;
    case Stat::count:
      columns |= {kCount};
      break;
    case Stat::nans:
    case Stat::infs:
      break;
  }
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
  return columns;
}

}  // namespace trainmon
