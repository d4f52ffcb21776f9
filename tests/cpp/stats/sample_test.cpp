// Sampled blocks, beside sums in long double over the very blocks, and beside textbook facts.
#include "stats/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "model/state_fields.h"

namespace trainmon {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

template <typename T>
struct Dense {
  std::vector<T> values;
  std::int64_t sizes[1], strides[1] = {1};
  DType dtype;

  Dense(std::vector<T> v, DType type)
      : values(std::move(v)), sizes{static_cast<std::int64_t>(values.size())}, dtype(type) {}
  TensorView view() const {
    return {.data = values.data(), .dtype = dtype, .ndim = 1, .sizes = sizes, .strides = strides};
  }
};
Dense<double> doubles(std::vector<double> v) {
  return {std::move(v), DType::float64};
}

struct Estimate {
  RowState state;
  RowSample sample;
};
Estimate estimate(const TensorView& view, int n, std::uint64_t seed) {
  Estimate one;
  const auto state = measure_sample(view, n, seed, one.sample);
  EXPECT_TRUE(state.has_value());
  if (state) one.state = *state;
  return one;
}

// Written from docs/formats.md alone: which elements are read, and what each stands for.
struct Part {
  std::size_t begin, size;
  double weight;
};
std::uint64_t splitmix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
std::vector<std::vector<Part>> strata_of(std::size_t elements, std::size_t n, std::uint64_t seed) {
  std::vector<std::vector<Part>> strata;
  const std::size_t blocks = elements / 1024;
  for (std::size_t first = 0, h = 0; first < blocks; first += 2 * n, ++h) {
    const std::size_t size = std::min(2 * n, blocks - first);
    std::vector<Part>& parts = strata.emplace_back();
    if (size <= 2) {
      for (std::size_t b = 0; b < size; ++b) parts.push_back({(first + b) * 1024, 1024, 1.0});
      continue;
    }
    const std::uint64_t bits = splitmix(seed + h * 0x9E3779B97F4A7C15u);
    const std::size_t a = (bits >> 32) * size >> 32;
    std::size_t b = (bits & 0xFFFFFFFFu) * (size - 1) >> 32;
    if (b >= a) ++b;
    for (const std::size_t one : {a, b}) {
      parts.push_back({(first + one) * 1024, 1024, static_cast<double>(size) / 2});
    }
  }
  if (elements % 1024 != 0) strata.push_back({{blocks * 1024, elements % 1024, 1.0}});
  return strata;
}

void expect_near(double found, double wanted, double scale) {
  EXPECT_NEAR(found, wanted, 1e-12 * scale) << "wanted " << wanted;
}

void expect_as_formula(const std::vector<double>& x, std::size_t n, std::uint64_t seed,
                       const Estimate& found) {
  long double sum = 0, sum_sq = 0, var_sum = 0, var_sq = 0, size = 0, abs_sum = 0;
  double least = kInf, most = -kInf;
  std::size_t read = 0, zeros = 0;
  const auto strata = strata_of(x.size(), n, seed);
  for (const auto& parts : strata) {
    std::vector<long double> of_sum, of_sq;
    for (const Part& part : parts) {
      long double s = 0, q = 0;
      for (std::size_t i = part.begin; i < part.begin + part.size; ++i) {
        s += x[i];
        q += static_cast<long double>(x[i]) * x[i];
        abs_sum += static_cast<long double>(part.weight) * std::fabs(x[i]);
        least = std::min(least, x[i]);
        most = std::max(most, x[i]);
        zeros += std::fabs(x[i]) < kDefaultEps ? 1 : 0;
      }
      read += part.size;
      sum += part.weight * s;
      sum_sq += part.weight * q;
      size += part.weight * static_cast<long double>(part.size);
      of_sum.push_back(s);
      of_sq.push_back(q);
    }
    if (parts.size() != 2 || parts[0].weight == 1.0) continue;
    const long double N = 2 * parts[0].weight, factor = N * N * (1 - 2 / N) / 4;
    var_sum += factor * (of_sum[0] - of_sum[1]) * (of_sum[0] - of_sum[1]);
    var_sq += factor * (of_sq[0] - of_sq[1]) * (of_sq[0] - of_sq[1]);
  }
  const long double mean = sum / size;
  long double m2 = 0;
  for (const auto& parts : strata) {
    for (const Part& part : parts) {
      for (std::size_t i = part.begin; i < part.begin + part.size; ++i) {
        m2 += part.weight * (x[i] - mean) * (x[i] - mean);
      }
    }
  }
  EXPECT_EQ(size, static_cast<long double>(x.size()));
  EXPECT_EQ(found.state.count, static_cast<std::int64_t>(x.size()));
  EXPECT_EQ(found.sample.elements, static_cast<std::int64_t>(read));
  EXPECT_EQ(found.state.zeros, static_cast<std::int64_t>(zeros));
  const auto of_abs = static_cast<double>(abs_sum), of_sq = static_cast<double>(sum_sq);
  expect_near(found.state.sum, static_cast<double>(sum), of_abs);
  expect_near(found.state.mean, static_cast<double>(mean), of_abs / static_cast<double>(x.size()));
  expect_near(found.state.sum_sq, of_sq, of_sq);
  expect_near(found.state.m2, static_cast<double>(m2), of_sq);
  expect_near(found.sample.sum_error, static_cast<double>(std::sqrt(var_sum)), of_abs);
  expect_near(found.sample.sum_sq_error, static_cast<double>(std::sqrt(var_sq)), of_sq);
  EXPECT_EQ(found.sample.min, least);
  EXPECT_EQ(found.sample.max, most);
  EXPECT_TRUE(found.state.is_estimate());
  const double norm = std::sqrt(of_sq);
  expect_near(derive(Stat::norm, found.state), norm, norm);
  expect_near(norm_error(found.state, found.sample),
              static_cast<double>(std::sqrt(var_sq)) / (2 * norm), norm);
  expect_near(mean_error(found.state, found.sample), static_cast<double>(std::sqrt(var_sum) / size),
              of_abs);
}

std::vector<double> normal(std::size_t n, unsigned seed, double mean = 0.0) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> of(mean, 1.0);
  std::vector<double> x(n);
  for (double& one : x) one = of(random);
  return x;
}

TEST(Sample, FormulaAtEveryLength) {
  // Ends of blocks, of strata and of what is too short: 4 n blocks are the shortest.
  for (const int n : {2, 4, 16}) {
    const std::size_t least = static_cast<std::size_t>(4 * n) * 1024;
    const std::size_t stratum = static_cast<std::size_t>(2 * n) * 1024;
    for (const std::size_t length :
         {least, least + 1, least + 1023, least + 1024, least + 1025, least + 2048, least + 3071,
          least + 3072, least + 4096 + 7, least + stratum - 1, least + stratum, least + stratum + 1,
          3 * stratum + 5 * 1024 + 77}) {
      const auto tensor = doubles(normal(length, static_cast<unsigned>(length), 0.3));
      SCOPED_TRACE("n " + std::to_string(n) + ", length " + std::to_string(length));
      expect_as_formula(tensor.values, static_cast<std::size_t>(n), 77 + length,
                        estimate(tensor.view(), n, 77 + length));
    }
    RowSample sample;
    const auto shorter = doubles(normal(least - 1, 3));
    EXPECT_FALSE(measure_sample(shorter.view(), n, 1, sample).has_value());
  }
}

TEST(Sample, FormulaOfEveryType) {
  const std::size_t length = 64 * 1024 + 5000;
  const auto x = normal(length, 9);
  std::vector<float> singles(x.begin(), x.end());
  std::vector<double> as_double(singles.begin(), singles.end());
  const Dense<float> of32(singles, DType::float32);
  expect_as_formula(as_double, 4, 5, estimate(of32.view(), 4, 5));
  std::vector<std::uint16_t> half(length);
  for (std::size_t i = 0; i < length; ++i) {  // cut off: a bfloat16 number is a short float32
    std::uint32_t bits = 0;
    std::memcpy(&bits, &singles[i], sizeof bits);
    bits &= 0xFFFF0000u;
    half[i] = static_cast<std::uint16_t>(bits >> 16);
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    as_double[i] = value;
  }
  const Dense<std::uint16_t> of_bf16(half, DType::bfloat16);
  const auto found = estimate(of_bf16.view(), 4, 6);
  // Sums of 1,024 numbers are in float32 there.
  std::vector<double> exact = as_double;
  const Estimate wanted = estimate(doubles(exact).view(), 4, 6);
  EXPECT_NEAR(found.state.sum_sq, wanted.state.sum_sq, 1e-6 * wanted.state.sum_sq);
  EXPECT_NEAR(found.state.sum, wanted.state.sum, 1e-6 * wanted.state.sum_sq);
  EXPECT_NEAR(found.sample.sum_sq_error, wanted.sample.sum_sq_error,
              1e-4 * wanted.sample.sum_sq_error);
  std::vector<std::int32_t> whole(length);
  for (std::size_t i = 0; i < length; ++i) {
    whole[i] = static_cast<std::int32_t>(i % 1000) - 300;
    as_double[i] = whole[i];
  }
  const Dense<std::int32_t> integers(whole, DType::int32);
  expect_as_formula(as_double, 8, 7, estimate(integers.view(), 8, 7));
}

// Of every pair the same share: 10,000 draws of 15 pairs, within 5 standard deviations.
TEST(Sample, EveryPairIsAsLikely) {
  std::vector<int> seen(36, 0);
  for (std::int64_t stratum = 0; stratum < 10'000; ++stratum) {
    const DrawnBlocks drawn = drawn_blocks(sample_seed({0, 3, 4, 0, 0}), stratum, 6);
    ASSERT_LT(drawn.first, drawn.second);
    ASSERT_GE(drawn.first, 0);
    ASSERT_LT(drawn.second, 6);
    ++seen[static_cast<std::size_t>(drawn.first * 6 + drawn.second)];
  }
  const double expected = 10'000.0 / 15, deviation = std::sqrt(expected * (1 - 1.0 / 15));
  for (std::size_t a = 0; a < 6; ++a) {
    for (std::size_t b = a + 1; b < 6; ++b) {
      EXPECT_NEAR(seen[a * 6 + b], expected, 5 * deviation) << a << " " << b;
    }
  }
}

TEST(Sample, KeyDecides) {
  const SampleKey key{1, 2, 3, 4, 5};
  EXPECT_EQ(sample_seed(key), sample_seed(key));
  std::uint64_t wanted = splitmix(1);
  for (const std::uint64_t part : {2u, 3u, 4u, 5u}) wanted = splitmix(wanted ^ part);
  EXPECT_EQ(sample_seed(key), wanted);
}

// The mean of estimates is the truth, and the mean of estimated variances is the variance of the
// estimates: 10,000 draws. The bounds are five standard errors of either mean. Those are taken
// from the draws themselves.
struct Draws {
  double bias_in_errors, variance_off_in_errors, covered;
};
template <typename Of>
Draws draws_of(const TensorView& view, int n, double truth, const Of& of) {
  constexpr int kDraws = 10'000;
  std::vector<double> values, variances;
  int covered = 0;
  for (int i = 0; i < kDraws; ++i) {
    const auto [value, error] = of(estimate(view, n, sample_seed({0, 1, i, 0, 0})));
    values.push_back(value);
    variances.push_back(error * error);
    covered += std::fabs(value - truth) <= 2 * error ? 1 : 0;
  }
  const auto mean_of = [](const std::vector<double>& x) {
    double sum = 0;
    for (const double one : x) sum += one;
    return sum / static_cast<double>(x.size());
  };
  std::vector<double> squares, differences;
  for (int i = 0; i < kDraws; ++i) {
    const double off = values[static_cast<std::size_t>(i)] - truth;
    squares.push_back(off * off);
    differences.push_back(variances[static_cast<std::size_t>(i)] - off * off);
  }
  const double variance = mean_of(squares), off = mean_of(differences);
  double spread = 0;
  for (const double one : differences) spread += (one - off) * (one - off);
  spread = std::sqrt(spread / kDraws / kDraws);
  const double standard_error = std::sqrt(variance / kDraws);
  return {(mean_of(values) - truth) / standard_error, off / spread,
          static_cast<double>(covered) / kDraws};
}

void expect_honest(const char* what, const std::vector<float>& x, int n, double least_covered) {
  const Dense<float> tensor(x, DType::float32);
  double sum = 0, sum_sq = 0;
  for (const float one : x) {
    sum += one;
    sum_sq += static_cast<double>(one) * one;
  }
  const auto check = [&](const char* name, double truth, const auto& of) {
    const Draws found = draws_of(tensor.view(), n, truth, of);
    SCOPED_TRACE(std::string(what) + ", " + name);
    EXPECT_LT(std::fabs(found.bias_in_errors), 5.0);
    EXPECT_LT(std::fabs(found.variance_off_in_errors), 5.0);
    EXPECT_GE(found.covered, least_covered);
    ::testing::Test::RecordProperty(std::string(what) + " " + name, std::to_string(found.covered));
    std::printf("%-12s %-8s bias %+.2f s.e., variance %+.2f s.e., within 2 errors %.4f\n", what,
                name, found.bias_in_errors, found.variance_off_in_errors, found.covered);
  };
  check("sum", sum, [](const Estimate& e) { return std::pair(e.state.sum, e.sample.sum_error); });
  check("sum_sq", sum_sq,
        [](const Estimate& e) { return std::pair(e.state.sum_sq, e.sample.sum_sq_error); });
}

TEST(Sample, UnbiasedAndCovered) {
  // 32 strata of 8 blocks and a ragged end: a difference has some 32 degrees of freedom, where
  // Student's t has 94.6 % within 2. A heavy tail has fewer in effect.
  const std::size_t length = 256 * 1024 + 100;
  const auto gauss = normal(length, 1);
  std::vector<float> x(gauss.begin(), gauss.end());
  expect_honest("normal", x, 4, 0.92);
  std::vector<float> tail(length), sparse(length, 0.0f), ramp(length);
  for (std::size_t i = 0; i < length; ++i) {
    tail[i] = static_cast<float>(std::exp(1.5 * gauss[i]));
    if (i * 2654435761u % 100 == 0) sparse[i] = x[i];
    ramp[i] = static_cast<float>(i) * 1e-5f;
  }
  expect_honest("log-normal", tail, 4, 0.75);
  expect_honest("sparse", sparse, 4, 0.90);
  expect_honest("ramp", ramp, 4, 0.92);
}

TEST(Sample, NonFinite) {
  const std::size_t length = 64 * 1024;
  auto x = normal(length, 4);
  const std::uint64_t seed = 11;
  const Part read = strata_of(length, 8, seed)[0][0];
  auto tensor = doubles(x);
  const Estimate clean = estimate(tensor.view(), 8, seed);
  // Out of the sample nothing is seen of it.
  std::vector<char> is_read(length, 0);
  for (const auto& parts : strata_of(length, 8, seed)) {
    for (const Part& part : parts) std::fill_n(is_read.begin() + long(part.begin), part.size, 1);
  }
  const auto unread = static_cast<std::size_t>(std::ranges::find(is_read, 0) - is_read.begin());
  tensor.values[unread] = kNan;
  const Estimate other = estimate(tensor.view(), 8, seed);
  EXPECT_TRUE(same_bits(clean.state.sum_sq, other.state.sum_sq));
  EXPECT_FALSE(other.state.non_finite());
  // In it the row is bad, and finite elements alone are summed.
  tensor.values[unread] = x[unread];
  tensor.values[read.begin] = kNan;
  tensor.values[read.begin + 1] = -kInf;
  const Estimate bad = estimate(tensor.view(), 8, seed);
  EXPECT_EQ(bad.state.nans, 1);
  EXPECT_EQ(bad.state.neg_infs, 1);
  EXPECT_TRUE(std::isnan(derive(Stat::norm, bad.state)));
  EXPECT_TRUE(std::isnan(norm_error(bad.state, bad.sample)));
  EXPECT_TRUE(std::isnan(mean_error(bad.state, bad.sample)));
  const double lost = x[read.begin] * x[read.begin] + x[read.begin + 1] * x[read.begin + 1];
  EXPECT_NEAR(bad.state.sum_sq, clean.state.sum_sq - 8 * lost, 1e-9 * clean.state.sum_sq);
}

TEST(Sample, NothingIsSaidOfTheWhole) {
  const auto tensor = doubles(normal(64 * 1024, 2));
  const Estimate one = estimate(tensor.view(), 8, 3);
  for (const Stat stat : {Stat::min, Stat::max, Stat::absmax, Stat::nans, Stat::infs, Stat::zeros,
                          Stat::subnormals}) {
    EXPECT_TRUE(std::isnan(derive(stat, one.state))) << stat_name(stat);
  }
  EXPECT_EQ(derive(Stat::count, one.state), 64 * 1024);
  EXPECT_TRUE(std::isfinite(derive(Stat::std, one.state)));
}

// What overflows as a square does not here: the estimate of 2^k x is that of x, scaled.
TEST(Sample, AnyScaleOfFloat64) {
  const auto x = normal(64 * 1024 + 9, 6);
  const Estimate one = estimate(doubles(x).view(), 4, 8);
  for (const int power : {-900, -500, 500, 900}) {
    std::vector<double> scaled = x;
    for (double& value : scaled) value = std::ldexp(value, power);
    const Estimate other = estimate(doubles(scaled).view(), 4, 8);
    SCOPED_TRACE(power);
    EXPECT_NEAR(std::ldexp(derive(Stat::norm, other.state), -power), derive(Stat::norm, one.state),
                1e-12 * derive(Stat::norm, one.state));
    EXPECT_NEAR(std::ldexp(norm_error(other.state, other.sample), -power),
                norm_error(one.state, one.sample), 1e-9 * norm_error(one.state, one.sample));
    EXPECT_NEAR(std::ldexp(mean_error(other.state, other.sample), -power),
                mean_error(one.state, one.sample), 1e-9 * mean_error(one.state, one.sample));
  }
}

TEST(Sample, OnlyDenseTensors) {
  const std::vector<double> x = normal(64 * 2048, 5);
  RowSample sample;
  std::int64_t sizes[2] = {64, 1024}, apart[2] = {2048, 1}, swapped[2] = {1, 64},
               expanded[2] = {0, 1};
  TensorView view{
      .data = x.data(), .dtype = DType::float64, .ndim = 2, .sizes = sizes, .strides = apart};
  EXPECT_FALSE(measure_sample(view, 4, 1, sample).has_value());
  view.strides = expanded;
  EXPECT_FALSE(measure_sample(view, 4, 1, sample).has_value());
  view.strides = swapped;  // dense: read in the order of memory
  const auto found = measure_sample(view, 4, 1, sample);
  ASSERT_TRUE(found.has_value());
  const Estimate flat = estimate(doubles({x.begin(), x.begin() + 64 * 1024}).view(), 4, 1);
  EXPECT_TRUE(same_bits(found->sum_sq, flat.state.sum_sq));
}

TEST(Sample, MergedWithAnythingItIsAnEstimate) {
  const auto a = doubles(normal(64 * 1024, 1)), b = doubles(normal(5000, 2));
  const RowState exact = measure(b.view());
  const Estimate one = estimate(a.view(), 4, 2);
  for (const bool estimate_first : {false, true}) {
    RowState merged = estimate_first ? one.state : exact;
    merge(merged, estimate_first ? exact : one.state);
    EXPECT_TRUE(merged.is_estimate());
    EXPECT_EQ(merged.count, 64 * 1024 + 5000);
    EXPECT_NEAR(merged.sum_sq, one.state.sum_sq + exact.sum_sq, 1e-12 * merged.sum_sq);
    EXPECT_NEAR(merged.sum, one.state.sum + exact.sum, 1e-9);
  }
}

}  // namespace
}  // namespace trainmon
