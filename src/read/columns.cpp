#include "read/columns.h"

namespace trainmon {

using namespace log_format;

namespace {

constexpr Columns kPlace = {Column::series,
                            Column::flags,
                            Column::window,
                            Column::accum,
                            Column::call,
                            Column::seq,
                            Column::shape,
                            column_of(&RowState::nans),
                            column_of(&RowState::pos_infs),
                            column_of(&RowState::neg_infs)};

}  // namespace

Columns columns_of(Stat stat) {
  static constexpr Column kCount = column_of(&RowState::count),
                          kExponent = column_of(&RowState::exponent);
  static constexpr Column kSum = column_of(&RowState::sum), kM2 = column_of(&RowState::m2),
                          kSumSq = column_of(&RowState::sum_sq), kMin = column_of(&RowState::min),
                          kMax = column_of(&RowState::max);
  Columns columns = kPlace;
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

Columns columns_of(std::span<const Stat> stats) {
  Columns columns = kPlace;
  for (const Stat stat : stats) columns |= columns_of(stat);
  return columns;
}

}  // namespace trainmon
