// Lines that swing more from one step on, or less, and lines that shift, drift or have one row that
// is far off.
#include "answers/spread.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>

namespace trainmon {
namespace {

constexpr std::int64_t kFrom = 150, kRows = 260;
using OfStep = std::function<double(std::int64_t)>;

std::optional<Shift> spread(unsigned seed, const OfStep& deviation, const OfStep& mean) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  SpreadSearch search;
  RowPlace place;
  for (place.step = 0; place.step < kRows; ++place.step) {
    search.add(place, mean(place.step) + deviation(place.step) * normal(random));
  }
  return search.found();
}

OfStep becomes(double factor) {
  return [=](std::int64_t step) { return step < kFrom ? 0.02 : 0.02 * factor; };
}
double zero(std::int64_t) {
  return 0.0;
}

TEST(Spread, ThatWidensIsFoundWhereItDoes) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const auto found = spread(seed, becomes(6.0), zero);
    ASSERT_TRUE(found) << seed;
    EXPECT_NEAR(static_cast<double>(found->row.row.step), static_cast<double>(kFrom), 5.0) << seed;
    EXPECT_NEAR(std::exp(found->row.value), 0.12, 0.05) << seed;
    EXPECT_NEAR(std::exp(found->row.usual), 0.02, 0.01) << seed;
  }
}

TEST(Spread, ThatEndsIsFoundWhereItDoes) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const auto found = spread(seed, becomes(0.0), zero);
    ASSERT_TRUE(found) << seed;
    EXPECT_NEAR(static_cast<double>(found->row.row.step), static_cast<double>(kFrom), 1.0) << seed;
  }
}

TEST(Spread, OfNoiseIsNothing) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    EXPECT_FALSE(spread(seed, becomes(1.0), zero)) << seed;
  }
}

TEST(Spread, OfALineThatShiftsOrHasOneFarRowIsNothing) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    for (const double far : {0.1, 0.3, 1.0, 100.0}) {
      const auto shifts = [=](std::int64_t step) { return step < kFrom ? 0.0 : far; };
      EXPECT_FALSE(spread(seed, becomes(1.0), shifts)) << seed << " " << far;
      const auto once = [=](std::int64_t step) { return step == kFrom ? far : 0.0; };
      EXPECT_FALSE(spread(seed, becomes(1.0), once)) << seed << " " << far;
    }
  }
}

TEST(Spread, OfALineThatSwungSoBeforeIsNothing) {
  const auto deviation = [](std::int64_t step) { return step % 100 < 50 ? 0.02 : 0.2; };
  int found = 0;
  for (unsigned seed = 0; seed < 50; ++seed) {
    const auto one = spread(seed, deviation, zero);
    found += one && one->row.row.step >= kFrom ? 1 : 0;
  }
  EXPECT_EQ(found, 0);
}

// It swings as before soon. What lasts then is told.
TEST(Spread, OfACalmPieceIsNothing) {
  constexpr std::int64_t kCalm = 100, kFewRows = 24, kLasts = 200;
  int found = 0;
  for (unsigned seed = 0; seed < 50; ++seed) {
    const auto becomes_at_last = [&](double lasting) {
      return spread(
          seed,
          [=](std::int64_t step) {
            const bool is_calm = step >= kCalm && step < kCalm + kFewRows;
            return is_calm ? 0.25 : step < kLasts ? 1.0 : lasting;
          },
          zero);
    };
    found += becomes_at_last(1.0) ? 1 : 0;
    const auto last = becomes_at_last(0.01);
    ASSERT_TRUE(last) << seed;
    if (last->row.row.step > kCalm + kFewRows) {
      EXPECT_NEAR(static_cast<double>(last->row.row.step), static_cast<double>(kLasts), 4.0);
    }
  }
  EXPECT_LE(found, 3);
}

TEST(Spread, OfAConstantIsNothing) {
  EXPECT_FALSE(spread(1, zero, [](std::int64_t step) { return step < kFrom ? 0.0 : 1.0; }));
}

}  // namespace
}  // namespace trainmon
