#include "read/columns.h"

namespace trainmon {

using namespace log_format;

Columns integer_columns() {
  Columns columns;
  for (const ColumnDefinition& definition : kColumns) {
    if (definition.type == ColumnType::integer) columns |= {definition.column};
  }
  return columns;
}

Columns columns_of(Stat stat) {
  static constexpr Column kSum = column_of(&RowState::sum), kM2 = column_of(&RowState::m2),
                          kSumSq = column_of(&RowState::sum_sq), kMin = column_of(&RowState::min),
                          kMax = column_of(&RowState::max);
  Columns columns = integer_columns();
  switch (stat) {
    case Stat::norm:
      columns |= {kSumSq};
      break;
    case Stat::min:
      columns |= {kMin};
      break;
    case Stat::max:
      columns |= {kMax};
      break;
    case Stat::mean:
      columns |= {kSum, kMean};
      break;
    case Stat::absmax:
      columns |= {kMin, kMax, kAbsmax};
      break;
    case Stat::std:
      columns |= {kM2};
      break;
    case Stat::zeros:
    case Stat::nans:
    case Stat::infs:
    case Stat::subnormals:
    case Stat::count:
      break;
  }
  return columns;
}

Columns columns_of(std::span<const Stat> stats) {
  Columns columns = integer_columns();
  for (const Stat stat : stats) columns |= columns_of(stat);
  return columns;
}

}  // namespace trainmon
