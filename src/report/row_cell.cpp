#include "report/row_cell.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trainmon::page {
namespace {

std::uint32_t count_of(std::int64_t count) {
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(count, 0, kMost));
}

// Mean and standard deviation are the norm's parts: their ratio gives both, for it loses no digits
// where one of them is small.
float balance_of(double mean, double deviation) {
  return narrowed(mean == 0.0 && deviation == 0.0 ? 0.0 : mean / deviation);
}

std::uint8_t share_of(double share) {
  constexpr double kWhole = 255.0;
  if (!(share > 0.0)) return 0;
  if (share >= 1.0) return 255;
  return static_cast<std::uint8_t>(std::clamp(std::round(share * kWhole), 1.0, kWhole - 1.0));
}

}  // namespace

Cell cell_of(const ReadRow& row) {
  Cell cell;
  if ((row.flags & flag::kNotReady) != 0) {
    const float none = std::numeric_limits<float>::quiet_NaN();
    cell.value = cell.low = cell.high = cell.min = cell.max = cell.balance = none;
    cell.marks = mark::kDropped;
    return cell;
  }
  const auto of = [&](Stat stat) { return narrowed(derive(stat, row.state)); };
  cell.value = cell.low = cell.high = of(Stat::norm);
  cell.min = of(Stat::min);
  cell.max = of(Stat::max);
  cell.balance = balance_of(derive(Stat::mean, row.state), derive(Stat::std, row.state));
  cell.zeros = share_of(derive(Stat::zeros, row.state));
  cell.count = count_of(row.state.count);
  cell.nans = count_of(row.state.nans);
  cell.infs = count_of(row.state.pos_infs + row.state.neg_infs);
  if (cell.nans > 0) cell.marks |= mark::kNan;
  if (cell.infs > 0) cell.marks |= mark::kInf;
  if (row.state.is_estimate()) {
    cell.marks |= mark::kSampled;
    cell.nans = cell.infs = 0;  // how many there are
  }
  return cell;
}

Cell cell_of(double value) {
  Cell cell;
  cell.value = cell.low = cell.high = narrowed(value);
  if (std::isnan(value)) cell.marks |= mark::kNan;
  if (std::isinf(value)) cell.marks |= mark::kInf;
  return cell;
}

}  // namespace trainmon::page
