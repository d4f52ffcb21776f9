// sign_agreement and adam_histograms against loops over long doubles, for layouts and dtypes.
#include "stats/pairs.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "model/histogram.h"
#include "trainmon/stat.h"

namespace trainmon {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

template <class T>
TensorView view(const std::vector<T>& data, DType dtype, const std::vector<std::int64_t>& sizes,
                const std::int64_t* strides = nullptr) {
  return {.data = data.data(),
          .dtype = dtype,
          .ndim = static_cast<int>(sizes.size()),
          .sizes = sizes.data(),
          .strides = strides};
}

int sign(double x) {
  return x > 0 ? 1 : x < 0 ? -1 : 0;
}

TEST(SignAgreement, ByHand) {
  const std::vector<std::int64_t> three{3};
  const std::vector<float> a{1, -1, 1};
  const std::vector<float> b{1, 1, -1};
  EXPECT_DOUBLE_EQ(sign_agreement(view(a, DType::float32, three), view(b, DType::float32, three)),
                   1.0 / 3.0);
  const std::vector<std::int64_t> none{0};
  EXPECT_EQ(sign_agreement(view(a, DType::float32, none), view(b, DType::float32, none)), 1.0);
  EXPECT_EQ(sign_agreement(view(a, DType::float32, {}), view(b, DType::float32, {})), 1.0);
}

TEST(SignAgreement, ZeroNanAndInfinity) {
  const std::vector<double> a{0.0, kNan, kInf, -kInf, 1e-320, -1e-300, kInf};
  const std::vector<double> b{1.0, 1.0, kInf, 1.0, 1e-320, 1e-300, 0.0};
  const std::vector<std::int64_t> size{7};
  // 0, 0, +1, -1, +1, -1, 0
  EXPECT_DOUBLE_EQ(sign_agreement(view(a, DType::float64, size), view(b, DType::float64, size)),
                   0.5);
  const std::vector<float> narrow{std::numeric_limits<float>::denorm_min(), -1.0f};
  const std::vector<std::int64_t> two{2};
  EXPECT_EQ(sign_agreement(view(narrow, DType::float32, two), view(narrow, DType::float32, two)),
            1.0);
}

TEST(SignAgreement, ElementsMeetWhateverTheLayout) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<std::int64_t> sizes{1 + trial % 7, 1 + trial % 5, 1 + (trial * 37) % 60};
    const std::int64_t n = sizes[0] * sizes[1] * sizes[2];
    std::vector<float> a(static_cast<std::size_t>(n));
    std::vector<double> b(static_cast<std::size_t>(n));
    for (auto& x : a)
      x = trial % 3 == 0 ? static_cast<float>(random() % 3) - 1 : float(normal(random));
    for (auto& x : b) x = normal(random);
    const std::array<std::int64_t, 3> plain{sizes[1] * sizes[2], sizes[2], 1};
    const std::array<std::int64_t, 3> turned{1, sizes[0], sizes[0] * sizes[1]};
    const auto& strides_a = trial % 2 == 0 ? plain : turned;
    const auto& strides_b = trial % 4 < 2 ? plain : turned;
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < sizes[0]; ++i) {
      for (std::int64_t j = 0; j < sizes[1]; ++j) {
        for (std::int64_t k = 0; k < sizes[2]; ++k) {
          const auto at = [&](const auto& s) {
            return static_cast<std::size_t>(i * s[0] + j * s[1] + k * s[2]);
          };
          sum += sign(static_cast<double>(a[at(strides_a)])) * sign(b[at(strides_b)]);
        }
      }
    }
    const double expected = (static_cast<double>(sum) / static_cast<double>(n) + 1) / 2;
    EXPECT_DOUBLE_EQ(sign_agreement(view(a, DType::float32, sizes, strides_a.data()),
                                    view(b, DType::float64, sizes, strides_b.data())),
                     expected);
  }
}

TEST(SignAgreement, SizesMustBeTheSame) {
  const std::vector<float> a(6, 1.0f);
  const std::vector<std::int64_t> two{2, 3};
  const std::vector<std::int64_t> three{3, 2};
  EXPECT_THROW(sign_agreement(view(a, DType::float32, two), view(a, DType::float32, three)),
               std::invalid_argument);
  TensorView elsewhere = view(a, DType::float32, two);
  elsewhere.device = Device::cuda;
  EXPECT_THROW(sign_agreement(elsewhere, view(a, DType::float32, two)), std::invalid_argument);
}

// Counts by comparing with the 31 edges, in long double.
std::vector<std::int64_t> counted(const std::vector<long double>& values) {
  std::vector<std::int64_t> bins(30, 0);
  for (const long double value : values) {
    for (int bin = 0; bin < 30; ++bin) {
      const long double low = -1.0L + 2.0L * bin / 30.0L;
      const long double high = -1.0L + 2.0L * (bin + 1) / 30.0L;
      const bool last = bin == 29;
      if (value >= low && (value < high || (last && value <= high)))
        ++bins[static_cast<std::size_t>(bin)];
    }
  }
  return bins;
}

TEST(AdamHistograms, AgainstTheFormula) {
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  std::vector<double> m(5000);
  std::vector<double> v(5000);
  for (std::size_t i = 0; i < m.size(); ++i) {
    m[i] = 0.01 * normal(random);
    v[i] = 1e-4 * std::pow(normal(random), 2) + (i % 10 == 0 ? 0.0 : 1e-6);
  }
  const AdamStep at{.step = 7, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3};
  std::vector<long double> update;
  std::vector<long double> ratio;
  std::int64_t above = 0;
  std::int64_t below = 0;
  for (std::size_t i = 0; i < m.size(); ++i) {
    const long double mean = m[i] / (1 - std::pow(0.9L, 7.0L));
    const long double size = std::sqrt(v[i] / (1 - std::pow(0.99L, 7.0L)));
    update.push_back(mean / (size + 1e-3L));
    ratio.push_back(mean / size);
    above += ratio.back() > 1;
    below += ratio.back() < -1;
  }
  const std::vector<std::int64_t> size{5000};
  const AdamHistograms found =
      adam_histograms(view(m, DType::float64, size), view(v, DType::float64, size), at);
  EXPECT_EQ(found.update.bins, counted(update));
  EXPECT_EQ(found.ratio.bins, counted(ratio));
  EXPECT_EQ(found.ratio.above, above);
  EXPECT_EQ(found.ratio.below, below);
  std::int64_t all = found.ratio.above + found.ratio.below + found.ratio.nans;
  for (const std::int64_t count : found.ratio.bins) all += count;
  EXPECT_EQ(all, 5000);
}

TEST(AdamHistograms, EdgesAndNothing) {
  const std::vector<double> m{1.0, -1.0, 0.0, kNan, 2.0};
  const std::vector<double> v{1.0, 1.0, 0.0, 1.0, 1.0};
  const std::vector<std::int64_t> size{5};
  const AdamStep at{.step = 1e9, .beta1 = 0.9, .beta2 = 0.999, .eps = 0.0};
  const Histogram ratio =
      adam_histograms(view(m, DType::float64, size), view(v, DType::float64, size), at).ratio;
  EXPECT_EQ(ratio.bins.front(), 1);  // -1 is in the first bin
  EXPECT_EQ(ratio.bins.back(), 1);   // and 1 in the last
  EXPECT_EQ(ratio.nans, 2);          // 0 / 0, and the NaN
  EXPECT_EQ(ratio.above, 1);
}

TEST(HistogramBytes, LayoutIsDocumented) {
  const Histogram histogram{-1.0, 1.0, {3, 4}, 5, 6, 7};
  const std::vector<std::byte> bytes = histogram_bytes(histogram);
  ASSERT_EQ(bytes.size(), 7 * 8u);
  std::array<double, 2> range{};
  std::array<std::int64_t, 5> counts{};
  std::memcpy(range.data(), bytes.data(), 16);
  std::memcpy(counts.data(), bytes.data() + 16, 40);
  EXPECT_EQ(range, (std::array<double, 2>{-1.0, 1.0}));
  EXPECT_EQ(counts, (std::array<std::int64_t, 5>{5, 6, 7, 3, 4}));

  const std::optional<Histogram> again = read_histogram(bytes);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->low, -1.0);
  EXPECT_EQ(again->high, 1.0);
  EXPECT_EQ(again->bins, histogram.bins);
  EXPECT_EQ(again->below, 5);
  EXPECT_EQ(again->above, 6);
  EXPECT_EQ(again->nans, 7);
  EXPECT_FALSE(read_histogram(std::span(bytes).first(39)));
  EXPECT_FALSE(read_histogram(std::span(bytes).first(41)));
}

}  // namespace
}  // namespace trainmon
