// Rows of a module that end, and states that do not change any more.
#include "answers/stopped_lines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "model/kinds.h"

namespace trainmon {
namespace {

constexpr std::int64_t kGivenSteps = 200, kStopsAt = 120;

std::vector<Series> all_lines() {
  std::vector<Series> all(5);
  for (Series& one : all) {
    one.name = "lstm";
    one.kind = kind::kActvGrad;
    one.element = "input.1.0";
  }
  all[0].element = "output";
  all[2].kind = "hessian";
  all[3].name = all[4].name = "head";
  all[4].element = "output";
  return all;
}

LineValue value_of(std::uint32_t series, std::int64_t step, double norm, std::int32_t restart = 0) {
  LineValue value;
  value.place.step = step;
  value.place.restart = restart;
  value.series = series;
  value.norm = norm;
  return value;
}

// Of rows of the module in each step, of which its input has those that `has_row` says.
StoppedLines given(const std::function<bool(std::int64_t)>& has_row,
                   std::int64_t restart_at = kGivenSteps, bool are_all = false) {
  static const std::vector<Series> kLines = all_lines();
  StoppedLines lines(kLines);
  for (std::int64_t step = 0; step < kGivenSteps; ++step) {
    const std::int32_t restart = step >= restart_at ? 1 : 0;
    for (int call = 0; call < 2; ++call) {
      lines.add(value_of(0, step, 1.0, restart));
      lines.add(value_of(4, step, 1.0, restart));
      if (has_row(step)) lines.add(value_of(1, step, 1.0, restart));
      if (!are_all || has_row(step)) lines.add(value_of(3, step, 1.0, restart));
    }
  }
  return lines;
}

TEST(StoppedLines, RowsThatEndAreTold) {
  for (const std::int64_t restart_at : {kGivenSteps, kStopsAt}) {
    const auto found = given([](auto step) { return step < kStopsAt; }, restart_at).found();
    ASSERT_EQ(found.size(), 1U);
    const auto& [shift, series, measure, is_spread] = found.front();
    EXPECT_EQ(series, 1U);
    EXPECT_EQ(measure, Measure::rows);
    EXPECT_EQ(shift.row.row.step, kStopsAt);
    EXPECT_EQ(shift.row.usual, 1.0);
    EXPECT_EQ(shift.begins, restart_at == kStopsAt);
    EXPECT_EQ(shift.row.row.restart, restart_at == kStopsAt ? 1 : 0);
  }
}

TEST(StoppedLines, RowsOfEverySecondStepEndWhereTheNextOneLacks) {
  const auto found = given([](auto step) { return step % 4 == 0 && step < kStopsAt; }).found();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front().shift.row.row.step, kStopsAt);
  EXPECT_EQ(found.front().shift.row.usual, 4.0);
}

TEST(StoppedLines, RowsThatLackForAWhileOrWithTheirModuleAreNothing) {
  EXPECT_TRUE(given([](auto step) { return step < 60 || step > 80; }).found().empty());
  EXPECT_TRUE(given([](auto step) { return step % 40 == 0 && step < kStopsAt; }).found().empty());
  EXPECT_TRUE(given([](auto step) { return step < 10; }).found().empty());
  EXPECT_TRUE(given([](auto step) { return step < kGivenSteps - 7; }).found().empty());
}

TEST(StoppedLines, RowsThatLackInMostModulesAtOnceAreNotRecorded) {
  EXPECT_TRUE(given([](auto step) { return step < kStopsAt; }, kGivenSteps, true).found().empty());
  EXPECT_TRUE(given([](auto step) { return step < kStopsAt; }, kStopsAt, true).found().empty());
}

TEST(StoppedLines, AModuleThatIsCalledNoMoreIsNothing) {
  const std::vector<Series> series = all_lines();
  StoppedLines lines(series);
  for (std::int64_t step = 0; step < kStopsAt; ++step) {
    lines.add(value_of(0, step, 1.0));
    lines.add(value_of(1, step, 1.0));
  }
  EXPECT_TRUE(lines.found().empty());
}

StoppedLines state_of(const std::function<std::int64_t(std::int64_t)>& norm) {
  static const std::vector<Series> kLines = all_lines();
  StoppedLines lines(kLines);
  for (std::int64_t step = 0; step < kGivenSteps; ++step)
    lines.add(value_of(2, step, static_cast<double>(norm(step))));
  return lines;
}

TEST(StoppedLines, AStateThatDoesNotChangeAnyMoreIsToldWhereAChangeIsDue) {
  for (const std::int64_t every : {1, 5}) {
    const auto norm = [&](std::int64_t step) { return 1 + std::min(step, kStopsAt - 1) / every; };
    const auto found = state_of(norm).found();
    ASSERT_EQ(found.size(), 1U);
    const auto& [shift, series, measure, is_spread] = found.front();
    EXPECT_EQ(series, 2U);
    EXPECT_EQ(measure, Measure::still);
    EXPECT_EQ(shift.row.row.step, kStopsAt);
    EXPECT_EQ(shift.row.usual, static_cast<double>(every));
  }
}

TEST(StoppedLines, AStateThatIsZeroOrNeverChangedOrChangesSeldomIsNothing) {
  EXPECT_TRUE(state_of([](auto) { return 0; }).found().empty());
  EXPECT_TRUE(state_of([](auto) { return 2; }).found().empty());
  EXPECT_TRUE(state_of([](auto step) { return step < kStopsAt ? 1 + step : 0; }).found().empty());
  EXPECT_TRUE(state_of([](auto step) { return 1 + step / 40; }).found().empty());
  EXPECT_TRUE(state_of([](auto step) { return 1 + step % 97; }).found().empty());
}

TEST(StoppedLines, AnotherRankBeginsAnew) {
  StoppedLines lines = given([](auto step) { return step < kStopsAt; });
  lines.forget();
  EXPECT_TRUE(lines.found().empty());
}

}  // namespace
}  // namespace trainmon
