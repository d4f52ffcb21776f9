// Searches over rows that were read: the first bad one, and the largest values.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>

#include "trainmon/tools.h"

namespace trainmon {

bool is_bad(const ReadRow& row) {
  return (row.flags & flag::kNonFinite) != 0 || row.state.non_finite();
}

namespace {

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

// Which time the run went through the row's step. Where only the newest restart of each step is
// shown it is the only one, whichever restart that is.
std::int32_t run_through(const RunRows& rows, const ReadRow& row) {
  return rows.all_restarts ? row.restart : 0;
}

}  // namespace

std::optional<FirstBad> first_bad(const RunRows& rows) {
  const auto order = [&](const ReadRow& row) {
    const int moment = moment_of(rows.series[row.series].kind);
    return std::tuple(row.step, run_through(rows, row), row.attempt, moment == 0 ? -1 : row.accum,
                      moment, row.seq, row.rank, row.restart);
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
  const auto is_better = [&](double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && !std::isnan(b);
    return smallest ? a < b : a > b;
  };
  const auto when = [&](const ReadRow& row) {
    return std::tuple(row.step, run_through(rows, row), row.attempt, row.seq, row.rank,
                      row.restart);
  };
  // Among equals the earliest first: of many NaN the one that was there first leads.
  const auto goes_before = [&](const Ranked& a, const Ranked& b) {
    if (is_better(a.value, b.value)) return true;
    return !is_better(b.value, a.value) && when(a.row) < when(b.row);
  };
  // A tensor that changed its dtype is several series, but one line.
  using Tensor = std::tuple<std::string_view, std::int32_t, std::string_view, std::string_view>;
  std::map<Tensor, Ranked> best;
  for (const ReadRow& row : rows.rows) {
    if (row.state.count == 0 || (row.flags & flag::kNotReady) != 0) continue;
    const Series& series = rows.series[row.series];
    const Ranked here{row, derive(stat, row.state)};
    const auto [so_far, fresh] =
        best.try_emplace({series.kind, series.chunk, series.name, series.element}, here);
    if (!fresh && goes_before(here, so_far->second)) so_far->second = here;
  }
  std::vector<Ranked> ranked;
  for (const auto& [tensor, found] : best) ranked.push_back(found);
  std::sort(ranked.begin(), ranked.end(), goes_before);
  if (ranked.size() > count) ranked.resize(count);
  return ranked;
}

}  // namespace trainmon
