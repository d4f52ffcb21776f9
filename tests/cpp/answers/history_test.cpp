// How unusual a value is in its own history: numbers computed with NumPy, and what ranks where.
#include "answers/history.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "answers/top.h"
#include "trainmon/first_bad.h"
#include "written_run.h"

namespace trainmon {
namespace {

// numpy: before = log10([1, 2, 4, 8, 16, 32, 64, 128]); abs(log10(1e6) - median(before)) /
// (1.4826 * median(abs(before - median(before))))
TEST(History, DistanceFromTheMedianInRobustDeviations) {
  History history;
  for (int i = 0; i < 7; ++i) history.add(std::log10(std::pow(2.0, i)));
  EXPECT_TRUE(std::isnan(history.score(6.0)));  // seven are before it
  history.add(std::log10(128.0));
  EXPECT_NEAR(history.score(6.0), 5.5414706, 1e-6);
  EXPECT_NEAR(history.usual(), std::pow(2.0, 3.5), 1e-12);
}

TEST(History, OnlySixteenAreBeforeIt) {
  History history;
  for (int i = 0; i < 40; ++i) history.add(i < 24 ? 5.0 : 0.0);
  EXPECT_DOUBLE_EQ(history.score(1.0), 100.0);  // all alike: in units of 0.01
  history.add(1.0);
  EXPECT_DOUBLE_EQ(history.score(0.0), 0.0);
  EXPECT_DOUBLE_EQ(history.usual(), 1.0);
}

TEST(History, AZeroIsATenthOfTheLeastBefore) {
  const double zero = std::log10(0.0);
  History history;
  for (int i = 0; i < 20; ++i) history.add(zero);
  EXPECT_EQ(history.score(zero), 0.0);
  EXPECT_EQ(history.usual(), 0.0);
  EXPECT_NEAR(history.score(-3.0), 100.0, 1e-9);
  for (int i = 0; i < 16; ++i) history.add(-3.0);
  EXPECT_NEAR(history.score(zero), 100.0, 1e-9);
}

TEST(History, TheMedianIsOfSixteen) {
  History history;
  for (int i = 0; i < 15; ++i) history.add(i);
  EXPECT_EQ(history.middle(), 7.0);
  for (int i = 15; i < 20; ++i) history.add(i);
  EXPECT_EQ(history.middle(), 11.5);
}

Unusual<int> furthest(const std::vector<std::pair<std::int64_t, double>>& values) {
  LineHistory<int> line;
  for (int i = 0; const auto& [step, value] : values) line.add(step, value, i++);
  return line.end();
}

TEST(LineHistory, TheLastRowOfAStepIsItsValue) {
  std::vector<std::pair<std::int64_t, double>> values;
  for (std::int64_t step = 0; step < 12; ++step) {
    values.emplace_back(step, step == 10 ? 1e9 : 0.25);  // parts of a sum
    values.emplace_back(step, step == 11 ? 10.0 : -1.0);
  }
  const Unusual<int> found = furthest(values);
  EXPECT_NEAR(found.score, 100.0, 1e-9);
  EXPECT_EQ(found.row, 23);
  EXPECT_DOUBLE_EQ(found.usual, 1.0);
}

TEST(LineHistory, WhatIsNotFiniteLeadsWhereverItIs) {
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<std::pair<std::int64_t, double>> values = {{0, 2.0}, {1, inf}, {1, 2.0}};
  for (std::int64_t step = 2; step < 20; ++step) values.emplace_back(step, step == 15 ? 1e9 : 2.0);
  values.emplace_back(20, inf);
  const Unusual<int> found = furthest(values);
  EXPECT_EQ(found.score, inf);
  EXPECT_EQ(found.row, 1);
  EXPECT_DOUBLE_EQ(found.usual, 2.0);
}

TEST(LineHistory, ARowIsClosedBesideWhatCameBeforeIt) {
  LineHistory<int> line;
  int closed = 0;
  const auto look = [&](const ClosedRow<int>& one) {
    EXPECT_EQ(one.row, closed++);
    EXPECT_DOUBLE_EQ(one.log, one.row == 9 ? 2.0 : 1.0);
    EXPECT_EQ(one.value, one.row == 9 ? 100.0 : -10.0);
    if (one.row < 9) return;
    EXPECT_DOUBLE_EQ(one.before.middle(), 1.0);
    EXPECT_NEAR(one.score, 100.0, 1e-9);
    EXPECT_EQ(one.unusual().score, one.score);
    EXPECT_DOUBLE_EQ(one.unusual().usual, 10.0);
  };
  for (int i = 0; i < 10; ++i) line.add(i, i == 9 ? 100.0 : -10.0, i, look);
  line.end(look);
  EXPECT_EQ(closed, 10);
}

TEST(LineHistory, FewStepsSayNothing) {
  std::vector<std::pair<std::int64_t, double>> values;
  for (std::int64_t step = 0; step < 8; ++step) values.emplace_back(step, step == 7 ? 1e9 : 1.0);
  EXPECT_TRUE(std::isnan(furthest(values).score));
  values.emplace_back(8, 1.0);
  EXPECT_EQ(furthest(values).score, 0.0);
}

std::vector<std::string> names(const TopOfRun& found) {
  std::vector<std::string> list;
  for (const Ranked& one : found.ranked) list.push_back(found.run.series[one.row.series].name);
  return list;
}

TEST(MostUnusual, RanksByHistoryNotBySize) {
  const Scratch scratch;
  for (const int number : {0, 1}) {
    WrittenRank rank(scratch.path(), number, 0);
    Series tokens;
    tokens.kind = "actv";
    tokens.name = "tokens";
    tokens.dtype = DType::int64;
    const SeriesId ids = rank.add(tokens);
    const SeriesId large = rank.add("grad_reduced", "large"),
                   spike = rank.add("grad_reduced", "spike"),
                   still = rank.add("grad_reduced", "still"),
                   late = rank.add("grad_reduced", "late"), bad = rank.add("grad_reduced", "bad"),
                   worse = rank.add("param_origin", "worse"),
                   skipped = rank.add("grad_reduced", "skipped"),
                   both = rank.add("grad_reduced", "both");
    for (std::int64_t window = 0; window < 30; ++window) {
      const double wobble = window % 2 == 0 ? 1.0 : 1.05;
      rank.row(ids, window, WrittenRank::one(window == 20 ? 1e9 : 1.0));
      rank.row(large, window, WrittenRank::one(1e6 * wobble));
      rank.row(spike, window, WrittenRank::one(window == 25 ? 1e-2 : 1e-5 * wobble));
      rank.row(still, window, WrittenRank::one(3.0));
      if (window >= 22) rank.row(late, window, WrittenRank::one(window == 29 ? 1e9 : 1.0));
      rank.row(bad, window, window == 28 ? WrittenRank::nan() : WrittenRank::one(1.0));
      rank.row(worse, window, window == 28 ? WrittenRank::nan() : WrittenRank::one(1.0));
      rank.row(skipped, window, window == 3 ? WrittenRank::nan() : WrittenRank::one(1.0));
      rank.row(both, window,
               window == 3 || window == 28 ? WrittenRank::nan() : WrittenRank::one(1.0));
      rank.outcome(window, window, window == 3 ? Fate::skipped : Fate::taken);
    }
    rank.write();
  }
  for (const bool merged : {false, true}) {
    ReadOptions options;
    options.merged = merged;
    const TopOfRun found = most_unusual(scratch.path(), options, Stat::norm, 100);
    // Of one step weights come first; what a loss scaler dropped comes behind what is really bad.
    EXPECT_EQ(names(found), (std::vector<std::string>{"worse", "bad", "both", "skipped", "spike",
                                                      "large", "still"}));
    EXPECT_EQ(found.tensors, 7);
    EXPECT_EQ(found.unranked, 2);  // of tokens and of too few steps
    const Ranked& spike = found.ranked[4];
    EXPECT_EQ(spike.row.step, 25);
    EXPECT_EQ(spike.row.rank, 0);
    EXPECT_DOUBLE_EQ(spike.value, 1e-2);
    EXPECT_EQ(found.ranked[6].score, 0.0);
    EXPECT_EQ(most_unusual(scratch.path(), options, Stat::norm, 2).ranked.size(), 2u);
  }
}

TEST(MostUnusual, ATensorThatChangedItsDtypeHasOneHistory) {
  const Scratch scratch;
  WrittenRank rank(scratch.path(), 0, 0);
  Series series;
  series.kind = "actv";
  series.name = "mlp";
  const SeriesId narrow = rank.add(series);
  series.dtype = DType::float64;
  const SeriesId wide = rank.add(series);
  for (std::int64_t window = 0; window < 12; ++window) {
    rank.row(window < 6 ? narrow : wide, window, WrittenRank::one(window == 9 ? 10.0 : 1.0));
  }
  rank.write();
  const TopOfRun found = most_unusual(scratch.path(), {}, Stat::max, 10);
  ASSERT_EQ(found.ranked.size(), 1u);
  EXPECT_EQ(found.ranked[0].row.step, 9);
  EXPECT_NEAR(found.ranked[0].score, 100.0, 1e-9);
}

}  // namespace
}  // namespace trainmon
