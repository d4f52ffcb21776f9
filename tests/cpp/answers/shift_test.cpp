// Lines that shift in one step, and lines that fall, swing or are noisy.
#include "answers/shift.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <vector>

namespace trainmon {
namespace {

constexpr std::int64_t kFault = 110, kSteps = 200;

std::optional<Shift> shift(const std::vector<double>& values, const ShiftRule& rule = kLasting) {
  ShiftSearch search(rule);
  RowPlace place;
  for (const double value : values) {
    search.add(place, std::log(value));
    ++place.step;
  }
  return search.found();
}

std::vector<double> values_of(unsigned seed, double noise,
                              const std::function<double(double)>& log) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0.0, noise);
  std::vector<double> values;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    values.push_back(std::exp(log(static_cast<double>(i)) + normal(random)));
  }
  return values;
}

double falling(double step) {
  return 1.0 + std::exp(-step / 60.0);
}

TEST(Shift, IsFoundInItsStep) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    for (const double by : {0.3, -0.3}) {
      const auto line = [&](double step) {
        return falling(step) + (step >= static_cast<double>(kFault) ? by : 0.0);
      };
      const std::optional<Shift> found = shift(values_of(seed, 0.03, line));
      ASSERT_TRUE(found) << seed;
      EXPECT_EQ(found->row.row.step, kFault) << seed;
      EXPECT_NEAR(found->apart, 0.3, 0.1) << seed;
    }
  }
}

// A training learns in a few steps what has changed.
TEST(Shift, ThatIsSoonLearnedIsFoundByFewValues) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const auto line = [&](double step) {
      const double since = step - static_cast<double>(kFault);
      return falling(step) + (since >= 0.0 ? 0.8 * std::exp(-since / 6.0) : 0.0);
    };
    const std::optional<Shift> found = shift(values_of(seed, 0.06, line), kShort);
    ASSERT_TRUE(found) << seed;
    EXPECT_EQ(found->row.row.step, kFault) << seed;
  }
}

TEST(Shift, IsNoneOfALossThatFallsSwingsOrStays) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    EXPECT_FALSE(shift(values_of(seed, 0.05, falling))) << seed;
    EXPECT_FALSE(shift(values_of(seed, 0.1, falling), kShort)) << seed;
    const auto swinging = [](double step) { return std::sin(step / 8.0); };
    EXPECT_FALSE(shift(values_of(seed, 0.02, swinging))) << seed;
    EXPECT_FALSE(shift(values_of(seed, 0.02, swinging), kShort)) << seed;
    EXPECT_FALSE(shift(values_of(seed, 0.3, [](double) { return 0.0; }))) << seed;
  }
}

TEST(Shift, IsNoneWhereValuesDoNotTell) {
  EXPECT_FALSE(shift(std::vector<double>()));
  EXPECT_FALSE(shift(std::vector<double>(200, 2.0)));
  std::vector<double> early(200, 2.0);
  for (std::size_t i = 0; i < 60; ++i) early[i] = 8.0 + static_cast<double>(i % 2);
  EXPECT_FALSE(shift(early));
  std::vector<double> with_zero(200, 2.0);
  for (std::size_t i = kFault; i < 200; ++i) with_zero[i] = 0.0;
  EXPECT_FALSE(shift(with_zero));
  std::vector<double> exact(200, 2.0);
  for (std::size_t i = kFault; i < 200; ++i) exact[i] = 2.2;
  const std::optional<Shift> found = shift(exact);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->row.row.step, kFault);
  EXPECT_NEAR(found->apart, std::log(1.1), 1e-9);
}

}  // namespace
}  // namespace trainmon
