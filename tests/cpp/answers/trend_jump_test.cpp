// Jumps beside a trend, held against least squares that are solved here by elimination.
#include "answers/trend_jump.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

namespace trainmon {
namespace {

constexpr std::size_t kSide = TrendJump::kWindow;

// The coefficient of [x >= 0] in y = a + b x + c [x >= 0], and its standard error.
std::pair<double, double> by_elimination(const double* y) {
  constexpr int kRows = 2 * static_cast<int>(kSide);
  std::array<std::array<double, 7>, 3> m = {};  // normal equations, y, and the unit matrix
  const auto terms = [](int i) {
    const int x = i - static_cast<int>(kSide);
    return std::array<double, 3>{1.0, static_cast<double>(x), x >= 0 ? 1.0 : 0.0};
  };
  for (int i = 0; i < kRows; ++i) {
    const auto x = terms(i);
    for (std::size_t r = 0; r < 3; ++r) {
      for (std::size_t c = 0; c < 3; ++c) m[r][c] += x[r] * x[c];
      m[r][3] += x[r] * y[i];
    }
  }
  for (std::size_t r = 0; r < 3; ++r) m[r][4 + r] = 1.0;
  for (std::size_t p = 0; p < 3; ++p) {
    const double pivot = m[p][p];
    for (double& one : m[p]) one /= pivot;
    for (std::size_t r = 0; r < 3; ++r) {
      if (r == p) continue;
      const double factor = m[r][p];
      for (std::size_t c = 0; c < 7; ++c) m[r][c] -= factor * m[p][c];
    }
  }
  double rest = 0.0;
  for (int i = 0; i < kRows; ++i) {
    const auto x = terms(i);
    const double off = y[i] - m[0][3] * x[0] - m[1][3] * x[1] - m[2][3] * x[2];
    rest += off * off;
  }
  return {m[2][3], std::sqrt(rest / (kRows - 3) * m[2][6])};
}

// Drifts, with noise, and jumps by `jump` at `at`.
std::vector<double> drifting(std::size_t rows, std::size_t at, double jump, double slope,
                             unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0.0, 0.1);
  std::vector<double> numbers;
  for (std::size_t i = 0; i < rows; ++i) {
    numbers.push_back(5.0 + slope * static_cast<double>(i) + noise(random) +
                      (i >= at ? jump : 0.0));
  }
  return numbers;
}

TEST(TrendJumps, AreThoseOfLeastSquares) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const std::size_t at = 130 + 7 * seed;
    const auto numbers = drifting(500, at, 1.0, 0.004, seed);
    const std::vector<TrendJump> found = trend_jumps(numbers);
    ASSERT_EQ(found.size(), 1u) << seed;
    const TrendJump& one = found[0];
    EXPECT_NEAR(static_cast<double>(one.at), static_cast<double>(at), 2.0);
    EXPECT_TRUE(one.is_clear());
    const auto [jump, error] = by_elimination(numbers.data() + one.at - kSide);
    EXPECT_NEAR(one.jump, jump, 1e-9);
    EXPECT_NEAR(one.errors, std::abs(jump) / error, 1e-3);
    double before = 0.0, after = 0.0;
    for (std::size_t i = 0; i < kSide; ++i) {
      before += numbers[one.at - 1 - i] / kSide;
      after += numbers[one.at + i] / kSide;
    }
    EXPECT_NEAR(one.before, before, 1e-12);
    EXPECT_NEAR(one.after, after, 1e-12);
    EXPECT_LT(one.earlier, one.errors / 2.0);
  }
}

TEST(TrendJumps, ADriftAloneIsNone) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    for (const double slope : {0.0, 0.01, -0.05}) {
      EXPECT_TRUE(trend_jumps(drifting(600, 600, 0.0, slope, seed)).empty()) << seed;
    }
  }
}

TEST(TrendJumps, WhatGrowsForTwentyStepsIsNone) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    auto numbers = drifting(400, 400, 0.0, 0.0, seed);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] += 1.0 * std::clamp((static_cast<double>(i) - 200.0) / 20.0, 0.0, 1.0);
    }
    EXPECT_TRUE(trend_jumps(numbers).empty()) << seed;
  }
}

TEST(TrendJumps, WhatJumpedBeforeJumpsAgain) {
  auto numbers = drifting(400, 80, 0.6, 0.0, 1);
  for (std::size_t i = 200; i < numbers.size(); ++i) numbers[i] += 0.6;
  EXPECT_TRUE(trend_jumps(numbers).empty());
}

TEST(TrendJumps, FewRowsAndNumbersThatAreAllOneTellNothing) {
  EXPECT_TRUE(trend_jumps(std::vector<double>()).empty());
  EXPECT_TRUE(trend_jumps(drifting(TrendJump::kEarlier + kSide - 1, 100, 5.0, 0.0, 1)).empty());
  EXPECT_TRUE(trend_jumps(drifting(300, 60, 5.0, 0.0, 1)).empty());  // too early
  EXPECT_TRUE(trend_jumps(std::vector<double>(500, 3.25)).empty());
  std::vector<double> step(500, 3.25);
  for (std::size_t i = 250; i < step.size(); ++i) step[i] = 3.5;
  ASSERT_EQ(trend_jumps(step).size(), 1u);
  EXPECT_EQ(trend_jumps(step)[0].at, 250u);
}

}  // namespace
}  // namespace trainmon
