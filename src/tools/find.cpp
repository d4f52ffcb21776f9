// Searches over rows that were read: the first bad one, and the largest values.
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "trainmon/tools.h"

namespace trainmon {
namespace {

bool is_bad(const ReadRow& row) {
  return (row.flags & flag::kNonFinite) != 0 || row.state.non_finite();
}

// The order in which a fault passes through a step. Weights before the step are what the forward
// used, so they come before everything else of the step, whatever the backward they were read
// after.
int moment_of(std::string_view kind) {
  if (kind == kind::kParamOrigin) return 0;
  if (kind == kind::kActv) return 1;
  if (kind == kind::kActvGrad || kind == kind::kGradUnreduced) return 2;
  if (kind == kind::kCc) return 3;
  if (kind == kind::kGradReduced || kind == kind::kMgDirection) return 4;
  if (kind == kind::kParamUpdated) return 6;
  return 5;
}

bool is_gradient(std::string_view kind) {
  return kind == kind::kActvGrad || kind == kind::kGradUnreduced || kind == kind::kGradReduced ||
         kind == kind::kCc;
}

}  // namespace

std::optional<FirstBad> first_bad(const RunRows& rows) {
  const auto order = [&](const ReadRow& row) {
    const int moment = moment_of(rows.series[row.series].kind);
    return std::tuple(row.restart, row.step, row.attempt, moment == 0 ? -1 : row.accum, moment,
                      row.seq, row.rank);
  };
  const ReadRow* first = nullptr;
  bool first_is_routine = false;
  for (const ReadRow& row : rows.rows) {
    if (!is_bad(row)) continue;
    const bool is_routine = row.fate == Fate::skipped && is_gradient(rows.series[row.series].kind);
    if (first == nullptr || (first_is_routine && !is_routine) ||
        (first_is_routine == is_routine && order(row) < order(*first))) {
      first = &row;
      first_is_routine = is_routine;
    }
  }
  if (first == nullptr) return std::nullopt;
  FirstBad found{*first, rows.series[first->series], {}};
  const auto place = [&](const ReadRow& row) {
    const Series& series = rows.series[row.series];
    return std::tie(row.restart, row.step, row.attempt, row.accum, row.call, series.kind,
                    series.chunk, series.name, series.element);
  };
  for (const ReadRow& row : rows.rows) {
    if (is_bad(row) && place(row) == place(*first)) found.ranks.push_back(row.rank);
  }
  std::sort(found.ranks.begin(), found.ranks.end());
  found.ranks.erase(std::unique(found.ranks.begin(), found.ranks.end()), found.ranks.end());
  return found;
}

std::vector<Ranked> top(const RunRows& rows, Stat stat, std::size_t count, bool smallest) {
  const auto comes_before = [&](const Ranked& a, const Ranked& b) {
    if (std::isnan(a.value) || std::isnan(b.value))
      return std::isnan(a.value) && !std::isnan(b.value);
    return smallest ? a.value < b.value : a.value > b.value;
  };
  std::vector<Ranked> best(rows.series.size());
  std::vector<bool> has_row(rows.series.size());
  for (const ReadRow& row : rows.rows) {
    if (row.state.count == 0 || (row.flags & flag::kNotReady) != 0) continue;
    const Ranked candidate{row, derive(stat, row.state)};
    if (has_row[row.series] && !comes_before(candidate, best[row.series])) continue;
    best[row.series] = candidate;
    has_row[row.series] = true;
  }
  std::vector<Ranked> ranked;
  for (std::size_t i = 0; i < best.size(); ++i) {
    if (has_row[i]) ranked.push_back(best[i]);
  }
  std::stable_sort(ranked.begin(), ranked.end(), comes_before);
  if (ranked.size() > count) ranked.resize(count);
  return ranked;
}

}  // namespace trainmon
