// What rounding may do, held against rounding itself: sums in two orders in each precision.
#include "compare/compare_tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "model/rounding.h"

namespace trainmon {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// norm mean std min max absmax nans infs count, in float64.
ComparedValues values_of(const std::vector<double>& x) {
  double sum = 0, squares = 0, centred = 0, low = kInf, high = -kInf;
  for (const double v : x) {
    sum += v;
    squares += v * v;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  const auto n = static_cast<double>(x.size());
  for (const double v : x) centred += (v - sum / n) * (v - sum / n);
  return {std::sqrt(squares),
          sum / n,
          std::sqrt(centred / n),
          low,
          high,
          std::max(-low, high),
          0,
          0,
          n};
}

double in_bfloat16(float value) {  // round to nearest, by the arithmetic of float32
  const float shifted = value * (1.0f + 0x1p16f);
  return shifted - (shifted - value);
}

TEST(CompareTolerance, UnitRoundoffIsHalfTheDistanceToTheNextNumber) {
  EXPECT_EQ(unit_roundoff(DType::float32), std::numeric_limits<float>::epsilon() / 2);
  EXPECT_EQ(unit_roundoff(DType::float64), std::numeric_limits<double>::epsilon() / 2);
  // 1 + u rounds to even, which is 1; anything above does not.
  EXPECT_EQ(in_bfloat16(1.0f + static_cast<float>(unit_roundoff(DType::bfloat16))), 1.0);
  EXPECT_GT(in_bfloat16(1.0f + static_cast<float>(unit_roundoff(DType::bfloat16)) * 1.01f), 1.0);
  EXPECT_EQ(unit_roundoff(DType::float16), std::ldexp(1.0, -11));
  EXPECT_EQ(unit_roundoff(DType::int64), 0.0);
}

TEST(CompareTolerance, DifferencesAreRelativeToTheSizeOfTheTensor) {
  const ComparedValues a{10, 1, 2, -3, 4, 4, 0, 0, 25};  // root mean square 2
  ComparedValues b = a;
  EXPECT_EQ(relative_differences(a, b), (std::array<double, kValueStats>{}));
  b[0] = 5;   // norm
  b[1] = 2;   // mean
  b[4] = -4;  // max
  const auto found = relative_differences(a, b);
  EXPECT_DOUBLE_EQ(found[0], 0.5);
  EXPECT_DOUBLE_EQ(found[1], 0.5);
  EXPECT_DOUBLE_EQ(found[2], 0.0);
  EXPECT_DOUBLE_EQ(found[4], 2.0);
  EXPECT_EQ(levels_of(found), (SpreadLevels{0.5, 2.0}));
}

TEST(CompareTolerance, WhatIsNotThereIsNotCompared) {
  const ComparedValues a{1, kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan};
  ComparedValues b = a;
  b[0] = 2;
  b[1] = 7;
  const auto found = relative_differences(a, b);
  EXPECT_DOUBLE_EQ(found[0], 0.5);
  EXPECT_TRUE(std::isnan(found[1]));
  EXPECT_EQ(levels_of(found), (SpreadLevels{0.5, 0.0}));
}

TEST(CompareTolerance, ZerosAndInfinitiesOnBothSidesAreEqual) {
  const ComparedValues zeros{0, 0, 0, 0, 0, 0, 0, 0, 4};
  EXPECT_EQ(relative_differences(zeros, zeros), (std::array<double, kValueStats>{}));
  const ComparedValues infinite{kInf, kInf, kNan, 0, kInf, kInf, 0, 1, 4};
  const auto found = relative_differences(infinite, infinite);
  EXPECT_EQ(found[0], 0.0);
  EXPECT_EQ(found[4], 0.0);
}

TEST(CompareTolerance, SumsInTwoOrdersAreWithinIt) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const std::size_t length : {16u, 256u, 4096u}) {
    // 64 dot products of float32, forwards and backwards, as are and stored in bfloat16.
    std::vector<double> forward, backward, stored_forward, stored_backward;
    for (int row = 0; row < 64; ++row) {
      std::vector<float> terms(length);
      for (float& term : terms) term = normal(random) * normal(random);
      float there = 0, back = 0;
      for (std::size_t i = 0; i < length; ++i) there += terms[i];
      for (std::size_t i = length; i-- > 0;) back += terms[i];
      forward.push_back(there);
      backward.push_back(back);
      stored_forward.push_back(in_bfloat16(there));
      stored_backward.push_back(in_bfloat16(back));
    }
    const auto check = [&](const auto& a, const auto& b, DType dtype) {
      const SpreadLevels levels = levels_of(relative_differences(values_of(a), values_of(b)));
      for (const Spread spread : {Spread::averaged, Spread::single}) {
        const double allowed = rounding_level(spread, unit_roundoff(dtype), 64);
        EXPECT_LT(levels[static_cast<std::size_t>(spread)], allowed) << length;
      }
      return levels;
    };
    const SpreadLevels levels = check(forward, backward, DType::float32);
    EXPECT_GT(levels[0] + levels[1], 0.0);  // they do differ
    check(stored_forward, stored_backward, DType::bfloat16);
    // That one of them is stored in bfloat16 is far beyond what float32 allows.
    const auto mixed =
        levels_of(relative_differences(values_of(forward), values_of(stored_forward)));
    EXPECT_GT(mixed[1], 10 * rounding_level(Spread::single, unit_roundoff(DType::float32), 64));
  }
}

TEST(CompareTolerance, MoreElementsLeaveLessToAnAverage) {
  const double u = unit_roundoff(DType::float32);
  const auto averaged = [&](std::int64_t n) { return rounding_level(Spread::averaged, u, n); };
  EXPECT_GT(averaged(1), averaged(16));
  EXPECT_GT(averaged(16), averaged(64));
  EXPECT_EQ(averaged(64), averaged(1'000'000));  // not all rounding cancels
  EXPECT_EQ(averaged(0), averaged(1));           // size not known
  EXPECT_EQ(rounding_level(Spread::single, u, 1), rounding_level(Spread::single, u, 1000));
  EXPECT_EQ(drift(0), 1.0);
  EXPECT_GT(drift(100), drift(10));
}

TEST(CompareTolerance, NoiseNeverFallsAndKnowsTensorAndKind) {
  constexpr int kActv = 1, kOther = 4;
  NoiseLevels noise;
  const double factor = NoiseLevels::kSafety;
  const auto at = [&](std::uint32_t tensor, int kind) {
    return noise.at(tensor, kind, Spread::single) / factor;
  };
  EXPECT_TRUE(noise.is_zero());
  EXPECT_EQ(at(0, kActv), 0.0);
  for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
    noise.add(tensor, kActv, {1e-8, 1e-7 * (tensor + 1)});
  }
  noise.end_step();
  EXPECT_FALSE(noise.is_zero());
  EXPECT_DOUBLE_EQ(at(0, kActv), 2e-7);  // the median of its kind
  EXPECT_DOUBLE_EQ(at(2, kActv), 3e-7);  // its own
  noise.end_step();
  EXPECT_DOUBLE_EQ(at(2, kActv), 3e-7);  // the last known
  for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
    noise.add(tensor, kActv, {kNan, tensor == 2 ? 1e-3 : 1e-9});
  }
  noise.end_step();
  EXPECT_DOUBLE_EQ(at(2, kActv), 1e-3);
  EXPECT_DOUBLE_EQ(at(0, kActv), 2e-7);  // and not the quieter later one
  EXPECT_DOUBLE_EQ(at(7, kActv), 2e-7);  // a tensor that the repeat lacks
  EXPECT_EQ(at(7, kOther), 0.0);
}

}  // namespace
}  // namespace trainmon
