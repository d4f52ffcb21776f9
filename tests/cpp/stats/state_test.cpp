// Merging, derive() and the table of statistics; accuracy over scales and distributions.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <stdexcept>

#include "stats/cpu/level.h"
#include "stats/oracle.h"

namespace trainmon {
namespace {

using test::oracle;
using test::Oracle;
using test::same;

constexpr double kInf = std::numeric_limits<double>::infinity();

template <class T>
RowState of(const std::vector<T>& data, double eps = kDefaultEps) {
  const auto n = static_cast<std::int64_t>(data.size());
  const DType dtype = sizeof(T) == 8 ? DType::float64 : DType::float32;
  return measure({data.data(), dtype, 1, &n, nullptr, Device::cpu, 0, nullptr}, eps);
}

template <class T>
Oracle exact(const std::vector<T>& data) {
  return oracle({data.begin(), data.end()}, kDefaultEps,
                static_cast<double>(std::numeric_limits<T>::min()));
}

TEST(State, NormAndMeanAreAccurateAtEveryScale) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  for (const double scale : {1e-42, 1e-22, 1e-3, 1.0, 1e20, 3e37}) {
    for (int kind = 0; kind < 4; ++kind) {
      std::vector<float> x(1000003);
      for (float& v : x) {
        const double drawn = kind == 0   ? normal(random)
                             : kind == 1 ? uniform(random)
                             : kind == 2
                                 ? 1.0 + 1e-6 * normal(random)
                                 : std::exp(4 * normal(random)) * (random() & 1 ? 1 : -1) * 1e-9;
        v = static_cast<float>(drawn * scale);
      }
      const RowState got = of(x);
      const Oracle want = exact(x);
      const auto n = static_cast<long double>(x.size());
      const long double norm = std::sqrt(want.sum_sq);
      EXPECT_LE(std::fabs(derive(Stat::norm, got) - norm), 1e-14L * norm) << scale << " " << kind;
      EXPECT_LE(std::fabs(got.mean - want.mean), 1e-15L * want.sum_abs / n) << scale << " " << kind;
      const long double std = std::sqrt(want.m2 / n);
      EXPECT_LE(std::fabs(derive(Stat::std, got) - std), 1e-12L * std) << scale << " " << kind;
    }
  }
}

TEST(State, Float64OfAnyScaleNeitherOverflowsNorUnderflows) {
  for (const double scale : {5e-324, 1e-310, 1e-200, 1e-120, 1.0, 1e120, 1e200, 1e305}) {
    std::vector<double> x;
    std::mt19937_64 random(2);
    std::normal_distribution<double> normal;
    for (int i = 0; i < 5000; ++i) x.push_back(normal(random) * scale);
    const RowState got = of(x);
    const Oracle want = exact(x);  // long double has the range
    EXPECT_EQ(got.min, want.min);
    EXPECT_EQ(got.max, want.max);
    EXPECT_EQ(got.subnormals, want.subnormals);
    const long double norm = std::sqrt(want.sum_sq);
    EXPECT_LE(std::fabs(derive(Stat::norm, got) - norm), 1e-15L * norm + 5e-324L) << scale;
    const long double std = std::sqrt(want.m2 / 5000);
    EXPECT_LE(std::fabs(derive(Stat::std, got) - std), 1e-12L * std + 5e-324L) << scale;
    EXPECT_LE(std::fabs(got.mean - want.mean), 1e-15L * want.sum_abs / 5000 + 5e-324L) << scale;
  }
  const std::vector<double> mixed = {1e300, -1e-310, 3e-320, 7.0};
  EXPECT_EQ(of(mixed).min, -1e-310);
  EXPECT_EQ(derive(Stat::norm, of(mixed)), 1e300);
  const double most = std::numeric_limits<double>::max();
  EXPECT_EQ(of(std::vector<double>(5000, most)).mean, most);
  EXPECT_EQ(of(std::vector<double>(5000, most)).sum, kInf);
  EXPECT_EQ(derive(Stat::std, of(std::vector<double>(5000, most))), 0.0);
}

TEST(State, MergingPartsGivesTheWhole) {
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 200; ++round) {
    std::vector<double> x;
    std::vector<RowState> parts;
    for (int part = 0; part < 5; ++part) {
      // Parts of very different scale and offset, some empty, some with nothing finite.
      std::vector<double> piece(random() % 40);
      const double scale = std::pow(10.0, static_cast<double>(random() % 560) - 280);
      for (double& v : piece) v = scale * (normal(random) + (round % 2) * 1000);
      if (round % 5 == 0 && !piece.empty()) piece[0] = std::nan("");
      if (round % 7 == 0) std::fill(piece.begin(), piece.end(), part % 2 == 0 ? 0.0 : -kInf);
      x.insert(x.end(), piece.begin(), piece.end());
      parts.push_back(of(piece));
    }
    RowState merged;
    for (const RowState& part : parts) merge(merged, part);
    const Oracle want = exact(x);
    ASSERT_EQ(merged.count, want.count);
    ASSERT_EQ(merged.nans, want.nans);
    ASSERT_EQ(merged.pos_infs, want.pos_infs);
    ASSERT_EQ(merged.neg_infs, want.neg_infs);
    ASSERT_EQ(merged.zeros, want.zeros);
    ASSERT_EQ(merged.subnormals, want.subnormals);
    ASSERT_EQ(merged.min, want.min);
    ASSERT_EQ(merged.max, want.max);
    if (merged.finite() == 0) continue;
    const auto n = static_cast<long double>(merged.finite());
    ASSERT_LE(std::fabs(merged.mean - want.mean), 2e-15L * want.sum_abs / n) << round;
    const long double sum_sq =
        std::ldexp(static_cast<long double>(merged.sum_sq), 2 * merged.exponent);
    const long double m2 = std::ldexp(static_cast<long double>(merged.m2), 2 * merged.exponent);
    ASSERT_LE(std::fabs(sum_sq - want.sum_sq), 1e-14L * want.sum_sq) << round;
    ASSERT_LE(std::fabs(m2 - want.m2), 1e-11L * want.m2 + 1e-30L * want.sum_sq) << round;
  }
}

TEST(State, DeriveFollowsTheTable) {
  const double nan = std::nan("");
  const auto stat = [](Stat s, const std::vector<double>& x) { return derive(s, of(x)); };
  const std::vector<double> x = {3.0, -4.0, 0.0, 1e-9};
  EXPECT_EQ(stat(Stat::norm, x), 5.0);
  EXPECT_EQ(stat(Stat::min, x), -4.0);
  EXPECT_EQ(stat(Stat::max, x), 3.0);
  EXPECT_DOUBLE_EQ(stat(Stat::mean, x), (3.0 - 4.0 + 1e-9) / 4);
  EXPECT_EQ(stat(Stat::zeros, x), 0.5);
  EXPECT_EQ(stat(Stat::absmax, x), 4.0);
  EXPECT_EQ(stat(Stat::count, x), 4.0);
  EXPECT_EQ(stat(Stat::infs, x), 0.0);
  EXPECT_DOUBLE_EQ(stat(Stat::std, {1.0, 3.0}), 1.0);  // of the population: divided by n

  for (const Stat s : {Stat::norm, Stat::min, Stat::max, Stat::mean, Stat::absmax, Stat::std}) {
    EXPECT_TRUE(std::isnan(stat(s, {1.0, nan, kInf}))) << stat_name(s);
  }
  EXPECT_EQ(stat(Stat::nans, {1.0, nan, kInf, -nan}), 2.0);
  EXPECT_EQ(stat(Stat::infs, {1.0, nan, kInf, -kInf}), 2.0);
  EXPECT_EQ(stat(Stat::zeros, {0.0, nan, kInf, -kInf}), 0.25);
  EXPECT_EQ(stat(Stat::norm, {1.0, -kInf}), kInf);
  EXPECT_EQ(stat(Stat::absmax, {1.0, -kInf}), kInf);
  EXPECT_EQ(stat(Stat::min, {1.0, kInf}), 1.0);
  EXPECT_EQ(stat(Stat::max, {1.0, kInf}), kInf);
  EXPECT_EQ(stat(Stat::min, {1.0, -kInf}), -kInf);
  EXPECT_EQ(stat(Stat::max, {1.0, -kInf}), 1.0);
  EXPECT_EQ(stat(Stat::min, {kInf}), kInf);
  EXPECT_EQ(stat(Stat::max, {-kInf}), -kInf);
  EXPECT_EQ(stat(Stat::mean, {1.0, kInf}), kInf);
  EXPECT_EQ(stat(Stat::mean, {1.0, -kInf}), -kInf);
  EXPECT_TRUE(std::isnan(stat(Stat::mean, {kInf, -kInf})));
  EXPECT_TRUE(std::isnan(stat(Stat::std, {1.0, kInf})));

  for (const Stat s : {Stat::norm, Stat::nans, Stat::infs, Stat::subnormals, Stat::count}) {
    EXPECT_EQ(stat(s, {}), 0.0) << stat_name(s);
  }
  for (const Stat s : {Stat::min, Stat::max, Stat::mean, Stat::zeros, Stat::absmax, Stat::std}) {
    EXPECT_TRUE(std::isnan(stat(s, {}))) << stat_name(s);
  }
}

TEST(State, NamesGoBothWays) {
  for (const StatDefinition& line : stat_table()) {
    EXPECT_EQ(stat_from_name(line.name), line.stat);
    EXPECT_EQ(stat_name(line.stat), line.name);
  }
  EXPECT_EQ(stat_from_name("nrom"), std::nullopt);
  for (int i = 0; i < 15; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_name("complex64"), std::nullopt);
}

TEST(State, LevelsAboveTheMachineAreRefused) {
  const CpuLevel before = cpu_level();
  set_cpu_level(CpuLevel::baseline);
  EXPECT_EQ(cpu_level(), CpuLevel::baseline);
  if (detected_cpu_level() < CpuLevel::avx512) {
    EXPECT_THROW(set_cpu_level(CpuLevel::avx512), std::invalid_argument);
  }
  set_cpu_level(before);
  EXPECT_EQ(cpu_level_from_name("avx2"), CpuLevel::avx2);
  EXPECT_EQ(cpu_level_from_name("AVX2"), std::nullopt);
}

}  // namespace
}  // namespace trainmon
