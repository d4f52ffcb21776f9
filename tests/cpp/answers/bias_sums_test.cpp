// Gradients of biases beside those of what their modules gave.
#include "answers/bias_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "model/kinds.h"

namespace trainmon {
namespace {

constexpr std::size_t kOutputs = 8, kSamples = 32;
constexpr std::int64_t kSumSteps = 100, kFaultAt = 70;

struct BiasCase {
  // By how much the gradient of the last module's bias is scaled.
  std::function<double(std::int64_t)> factor = [](auto) { return 1.0; };
  bool is_clipped = false;       // all by one factor, another one in each step
  bool has_other_norms = false;  // no bias has its module's sum, as in a parameter of another use
  int micro_steps = 1;
  std::size_t modules = 4;
  std::size_t rounded = 0;  // so many of them, the first ones, are off by their rounding
};

LineValue value_of_all(std::uint32_t series, std::int64_t step, const std::vector<double>& all) {
  LineValue value;
  value.place.step = step;
  value.series = series;
  double sum = 0.0, squares = 0.0;
  for (const double one : all) {
    sum += one;
    squares += one * one;
  }
  value.elements = static_cast<std::int64_t>(all.size());
  value.norm = std::sqrt(squares);
  value.mean = sum / std::sqrt(squares * static_cast<double>(all.size()));
  return value;
}

std::vector<LineShift> found_in(const BiasCase& given) {
  std::vector<Series> series(2 * given.modules);
  for (std::size_t i = 0; i < given.modules; ++i) {
    series[2 * i].kind = kind::kActvGrad;
    series[2 * i].name = "layers." + std::to_string(i);
    series[2 * i].element = "output";
    series[2 * i + 1].kind = kind::kGradReduced;
    series[2 * i + 1].name = series[2 * i].name + ".bias";
  }
  BiasSums sums(series);
  std::mt19937 random(5);
  std::normal_distribution<double> normal(0.02, 0.1);
  for (std::int64_t step = 0; step < kSumSteps; ++step) {
    const double clipped = given.is_clipped ? 1.0 / (2.0 + static_cast<double>(step % 7)) : 1.0;
    for (std::size_t i = 0; i < given.modules; ++i) {
      std::vector<double> bias(kOutputs);
      for (int micro = 0; micro < given.micro_steps; ++micro) {
        std::vector<double> output(kOutputs * kSamples);
        for (double& one : output) one = normal(random);
        for (std::size_t at = 0; at < output.size(); ++at) bias[at % kOutputs] += output[at];
        sums.add(value_of_all(static_cast<std::uint32_t>(2 * i), step, output));
      }
      for (double& one : bias) {
        one *= clipped * (i + 1 == given.modules ? given.factor(step) : 1.0);
        if (given.has_other_norms) one *= 1.0 + normal(random);
        if (i < given.rounded) one *= 1.0 + 0.01 * normal(random);
      }
      sums.add(value_of_all(static_cast<std::uint32_t>(2 * i + 1), step, bias));
    }
  }
  return sums.found();
}

TEST(BiasSums, AGradientThatLosesAPartIsTold) {
  for (const bool is_clipped : {false, true}) {
    for (const int micro_steps : {1, 3}) {
      const auto factor = [](auto step) { return step == kFaultAt ? 0.5 : 1.0; };
      const auto found = found_in({factor, is_clipped, false, micro_steps});
      ASSERT_EQ(found.size(), 1U);
      EXPECT_EQ(found.front().series, 2 * BiasCase().modules - 1);
      EXPECT_EQ(found.front().shift.row.row.step, kFaultAt);
      EXPECT_NEAR(found.front().shift.row.value, 0.5, 1e-9);
    }
  }
}

TEST(BiasSums, ThoseThatAreRoundedLessTellTheFactor) {
  EXPECT_TRUE(found_in({.modules = 9, .rounded = 5}).empty());
  const auto factor = [](auto step) { return step == kFaultAt ? 0.999 : 1.0; };
  const auto found = found_in({.factor = factor, .modules = 9, .rounded = 5});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front().shift.row.row.step, kFaultAt);
}

TEST(BiasSums, StepsThatAreNotFiniteAreNothing) {
  std::vector<Series> series(2);
  series[0].kind = kind::kActvGrad;
  series[0].element = "output";
  series[1].kind = kind::kGradReduced;
  series[1].name = "bias";
  BiasSums sums(series);
  for (std::int64_t step = 0; step < kSumSteps; ++step) {
    for (const std::uint32_t one : {0U, 1U}) {
      LineValue value = value_of_all(one, step, {1.0, 2.0});
      if (step % 2 == one) value.norm = std::numeric_limits<double>::infinity();
      if (step % 3 == one) value.mean = std::numeric_limits<double>::quiet_NaN();
      sums.add(value);
    }
  }
  EXPECT_TRUE(sums.found().empty());
}

TEST(BiasSums, WhatHoldsOrNeverHeldIsNothing) {
  EXPECT_TRUE(found_in({}).empty());
  EXPECT_TRUE(found_in({.is_clipped = true}).empty());
  EXPECT_TRUE(found_in({.has_other_norms = true}).empty());
  EXPECT_TRUE(
      found_in({[](auto step) { return 1.0 + 0.01 * static_cast<double>(step % 5); }}).empty());
  EXPECT_TRUE(found_in({[](auto step) { return step < 20 ? 1.0 : 0.5; }}).empty());
}

}  // namespace
}  // namespace trainmon
