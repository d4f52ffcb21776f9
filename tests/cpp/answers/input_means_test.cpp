// Means of many steps, of drawn numbers.
#include "answers/input_means.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <vector>

namespace trainmon {
namespace {

using Draw = std::function<double(std::int64_t)>;

// The numbers of so many steps, `stride` apart, on each rank.
StepMeans drawn(std::int64_t steps, const Draw& draw, int ranks = 1, std::int64_t stride = 1,
                std::int64_t restart_at = -1) {
  StepMeans means;
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::int64_t step = 0; step < steps; ++step) {
      RowPlace row;
      row.rank = rank;
      row.step = stride * step;
      row.restart = restart_at >= 0 && step >= restart_at ? 1 : 0;
      means.add(row, draw(step));
    }
  }
  return means;
}

// Of one standard deviation, with another mean from `at` on.
struct Noise {
  std::int64_t at;
  double apart;
  double memory = 0.0;  // how much of a number is that of the one before
  std::mt19937_64 random = std::mt19937_64(7);
  double last = 0.0;

  double operator()(std::int64_t step) {
    last = memory * last + std::normal_distribution<double>()(random);
    return last + (step >= at ? apart : 0.0);
  }
};

TEST(StepMeans, AChangeIsToldInItsStep) {
  for (const double apart : {2.0, -2.0}) {
    const auto change = drawn(600, Noise{400, apart}).change();
    ASSERT_TRUE(change);
    EXPECT_NEAR(static_cast<double>(change->first.step), 400.0, 3.0);
    EXPECT_NEAR(change->after - change->before, apart, 0.6);
    EXPECT_GT(change->errors, 6.0);
    EXPECT_EQ(change->steps, 64);
    EXPECT_FALSE(change->begins);
  }
}

TEST(StepMeans, WhatRanksHaveInCommonIsClearerOverAllOfThem) {
  EXPECT_FALSE(drawn(600, Noise{400, 0.5}).change());
  const auto change = drawn(600, Noise{400, 0.5}, 16).change();
  ASSERT_TRUE(change);
  EXPECT_NEAR(static_cast<double>(change->first.step), 400.0, 3.0);
}

TEST(StepMeans, AStartThatBeginsWithItIsSaid) {
  const auto change = drawn(600, Noise{400, 8.0}, 1, 1, 400).change();
  ASSERT_TRUE(change);
  EXPECT_EQ(change->first.step, 400);
  EXPECT_EQ(change->first.restart, 1);
  EXPECT_TRUE(change->begins);
}

TEST(StepMeans, StepsThatAreRecordedNowAndThenAreOneLine) {
  const auto change = drawn(600, Noise{400, 8.0}, 2, 20).change();
  ASSERT_TRUE(change);
  EXPECT_EQ(change->first.step, 400 * 20);
  EXPECT_EQ(change->steps, 63 * 20 + 1);
}

TEST(StepMeans, OfManyStepsNeighboursAreTakenTogether) {
  const auto most = static_cast<std::int64_t>(StepMeans::kMostMeans);
  const auto change = drawn(3 * most, Noise{2 * most, 4.0}).change();
  ASSERT_TRUE(change);
  EXPECT_EQ(change->first.step, 2 * most);
  EXPECT_EQ(change->steps, 64 * 4);
}

TEST(StepMeans, WhatDoesNotChangeIsNotTold) {
  for (const double memory : {0.0, 0.5}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      Noise noise{0, 0.0, memory};
      noise.random.seed(seed);
      EXPECT_FALSE(drawn(2000, noise).change()) << memory << " " << seed;
    }
  }
  EXPECT_FALSE(drawn(2000, [](auto) { return 3.0; }).change());
  EXPECT_FALSE(drawn(0, Noise{0, 0.0}).change());
}

TEST(StepMeans, NorWhatChangesAllTheTime) {
  const auto swing = [](std::int64_t step) { return std::sin(static_cast<double>(step) / 80.0); };
  EXPECT_FALSE(drawn(2000, swing).change());
  EXPECT_FALSE(
      drawn(2000, [](std::int64_t step) { return 1e-3 * static_cast<double>(step); }).change());
}

TEST(StepMeans, NumbersThatComeAgainAreTold) {
  std::vector<double> epoch(50);
  std::mt19937_64 random(3);
  for (double& one : epoch) one = std::normal_distribution<double>()(random);
  Noise noise{0, 0.0};
  const auto again = [&](std::int64_t step) {
    return epoch[static_cast<std::size_t>(step % 50)] + 0.2 * noise(step);
  };
  const auto repeat = drawn(300, again).repeat();
  ASSERT_TRUE(repeat);
  EXPECT_EQ(repeat->steps, 50);
  EXPECT_EQ(repeat->first.step, 50);
  EXPECT_GT(repeat->correlation, 0.9);
  EXPECT_FALSE(drawn(100, again).repeat());
}

TEST(StepMeans, WhatDoesNotComeAgainIsNotTold) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Noise noise{0, 0.0};
    noise.random.seed(seed);
    EXPECT_FALSE(drawn(1000, noise).repeat()) << seed;
  }
  // Sources that take turns, a slow swing, two spikes, a few numbers alone.
  Noise noise{0, 0.0};
  const auto turns = [&](std::int64_t step) {
    return 10.0 * static_cast<double>(step % 4) + noise(step);
  };
  EXPECT_FALSE(drawn(1000, turns).repeat());
  const auto swing = [](std::int64_t step) { return std::sin(static_cast<double>(step) / 9.0); };
  EXPECT_FALSE(drawn(1000, swing).repeat());
  const auto spikes = [&](std::int64_t step) {
    return (step == 200 || step == 260 ? 1e6 : 0.0) + noise(step);
  };
  EXPECT_FALSE(drawn(1000, spikes).repeat());
  EXPECT_FALSE(drawn(1000, [](std::int64_t step) { return step % 20 == 0 ? 5.0 : 3.0; }).repeat());
}

TEST(StepMeans, ALateChangeIsNotTold) {
  EXPECT_FALSE(drawn(600, Noise{600 - 40, 8.0}).change());
  EXPECT_FALSE(drawn(600, Noise{100, 8.0}).change());  // nor an early one
}

}  // namespace
}  // namespace trainmon
