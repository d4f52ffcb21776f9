// Losses that shift in one step, and losses that fall, swing or are noisy.
#include "answers/loss_shift.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <vector>

namespace trainmon {
namespace {

constexpr std::size_t kFault = 110, kSteps = 200;

std::vector<double> losses(unsigned seed, double noise, const std::function<double(double)>& log) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0.0, noise);
  std::vector<double> values;
  for (std::size_t i = 0; i < kSteps; ++i) {
    values.push_back(std::exp(log(static_cast<double>(i)) + normal(random)));
  }
  return values;
}

double falling(double step) { return 1.0 + std::exp(-step / 60.0); }

TEST(LossShift, IsFoundInItsStep) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    for (const double shift : {0.3, -0.3}) {
      const auto shifted = [&](double step) {
        return falling(step) + (step >= static_cast<double>(kFault) ? shift : 0.0);
      };
      const std::optional<LossShift> found = loss_shift(losses(seed, 0.03, shifted));
      ASSERT_TRUE(found) << seed;
      EXPECT_EQ(found->at, kFault) << seed;
      EXPECT_NEAR(std::log(found->apart), 0.3, 0.1) << seed;
    }
  }
}

TEST(LossShift, IsNoneOfALossThatFallsSwingsOrStays) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    EXPECT_FALSE(loss_shift(losses(seed, 0.05, falling))) << seed;
    const auto swinging = [](double step) { return std::sin(step / 8.0); };
    EXPECT_FALSE(loss_shift(losses(seed, 0.02, swinging))) << seed;
    EXPECT_FALSE(loss_shift(losses(seed, 0.3, [](double) { return 0.0; }))) << seed;
  }
}

TEST(LossShift, IsNoneWhereValuesDoNotTell) {
  EXPECT_FALSE(loss_shift({}));
  EXPECT_FALSE(loss_shift(std::vector<double>(kSteps, 2.0)));
  std::vector<double> early(kSteps, 2.0);
  for (std::size_t i = 0; i < 60; ++i) early[i] = 8.0 + static_cast<double>(i % 2);
  EXPECT_FALSE(loss_shift(early));
  std::vector<double> with_zero(kSteps, 2.0);
  for (std::size_t i = kFault; i < kSteps; ++i) with_zero[i] = 0.0;
  EXPECT_FALSE(loss_shift(with_zero));
  std::vector<double> exact(kSteps, 2.0);
  for (std::size_t i = kFault; i < kSteps; ++i) exact[i] = 2.2;
  const std::optional<LossShift> found = loss_shift(exact);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->at, kFault);
  EXPECT_NEAR(found->apart, 1.1, 1e-9);
}

}  // namespace
}  // namespace trainmon
