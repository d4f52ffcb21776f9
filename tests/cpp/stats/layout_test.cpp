// Views of every shape against a walk over their indices.
#include "stats/layout.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

#include "stats/oracle.h"

namespace trainmon {
namespace {

using test::oracle;
using test::Oracle;
using test::same;

struct View {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t start = 0;

  TensorView of(const std::vector<float>& data) const {
    return {data.data() + start,
            DType::float32,
            static_cast<int>(sizes.size()),
            sizes.data(),
            strides.data(),
            Device::cpu,
            0,
            nullptr};
  }
  std::vector<double> walk(const std::vector<float>& data) const {
    std::vector<double> out;
    std::vector<std::int64_t> index(sizes.size(), 0);
    for (const std::int64_t size : sizes) {
      if (size == 0) return out;
    }
    for (;;) {
      std::int64_t at = start;
      for (std::size_t d = 0; d < sizes.size(); ++d) at += index[d] * strides[d];
      out.push_back(static_cast<double>(data[static_cast<std::size_t>(at)]));
      std::size_t d = sizes.size();
      while (d > 0 && ++index[d - 1] == sizes[d - 1]) index[--d] = 0;
      if (d == 0) return out;
    }
  }
};

std::vector<float> numbers(std::size_t n) {
  std::vector<float> data(n);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (float& x : data) x = normal(random);
  return data;
}

void check(const View& view, const std::vector<float>& data) {
  const Oracle want = oracle(view.walk(data), 0.1, 0x1p-126);
  const RowState got = measure(view.of(data), 0.1);
  EXPECT_EQ(got.count, want.count);
  EXPECT_EQ(got.zeros, want.zeros);
  EXPECT_EQ(got.min, want.min);
  EXPECT_EQ(got.max, want.max);
  EXPECT_NEAR(got.sum, static_cast<double>(want.sum), 1e-15 * static_cast<double>(want.sum_abs));
  EXPECT_NEAR(got.sum_sq, static_cast<double>(want.sum_sq),
              1e-14 * static_cast<double>(want.sum_sq));
  EXPECT_NEAR(got.m2, static_cast<double>(want.m2), 1e-12 * static_cast<double>(want.m2));
}

TEST(Layout, AnExpandedViewIsMostlyRepeatedBeyond16MillionElementsAndEightTimes) {
  const auto is_repeated = [](std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides) {
    return is_mostly_repeated({nullptr, DType::float32, static_cast<int>(sizes.size()),
                               sizes.data(), strides.data(), Device::cpu, 0, nullptr});
  };
  constexpr std::int64_t kMost = 1 << 24;
  EXPECT_TRUE(is_repeated({kMost + 1}, {0}));
  EXPECT_FALSE(is_repeated({kMost}, {0}));
  EXPECT_TRUE(is_repeated({9, kMost}, {0, 1}));
  EXPECT_FALSE(is_repeated({8, kMost}, {0, 1}));
  EXPECT_TRUE(is_repeated({std::int64_t{1} << 31, std::int64_t{1} << 31}, {0, 0}));
  EXPECT_FALSE(is_repeated({0, kMost, 9}, {0, 1, 0}));
  const std::int64_t many = 9 * kMost;
  EXPECT_FALSE(is_mostly_repeated({nullptr, DType::float32, 1, &many}));  // dense
}

TEST(Layout, AnyDenseOrderIsTheSameRun) {
  const std::vector<float> data = numbers(24 * 30 * 7);
  const View plain{{24, 30, 7}, {210, 7, 1}, 0};
  const RowState want = measure(plain.of(data));
  EXPECT_TRUE(same(measure(View{{7, 24, 30}, {1, 210, 7}, 0}.of(data)), want));
  EXPECT_TRUE(same(measure(View{{30, 7, 24, 1}, {7, 1, 210, 99}, 0}.of(data)), want));
  EXPECT_TRUE(same(measure(View{{24, 30, 7}, {-210, 7, -1}, 23 * 210 + 6}.of(data)), want));
  const std::int64_t n = 24 * 30 * 7;
  EXPECT_TRUE(
      same(measure({data.data(), DType::float32, 1, &n, nullptr, Device::cpu, 0, nullptr}), want));
}

TEST(Layout, StridedEqualsItsContiguousCopy) {
  const std::vector<float> data = numbers(4 * 9000);
  const View strided{{9000}, {4}, 1};
  std::vector<float> copy;
  for (std::size_t i = 0; i < 9000; ++i) copy.push_back(data[1 + 4 * i]);
  const View plain{{9000}, {1}, 0};
  EXPECT_TRUE(same(measure(strided.of(data)), measure(plain.of(copy))));
}

TEST(Layout, RandomViewsOverlappingOnesIncluded) {
  const std::vector<float> data = numbers(20000);
  std::mt19937 random(5);
  const auto below = [&](int n) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(n));
  };
  for (int i = 0; i < 3000; ++i) {
    View view;
    std::int64_t low = 0, high = 0;
    for (std::int64_t d = below(5); d > 0; --d) {
      const std::int64_t size = i % 50 == 0 ? below(3) : 1 + below(9);
      const std::int64_t stride = below(400) - 200;
      view.sizes.push_back(size);
      view.strides.push_back(i % 7 == 0 ? 0 : stride);
      if (size > 1) (view.strides.back() < 0 ? low : high) += (size - 1) * view.strides.back();
    }
    ASSERT_LT(high - low, 20000);
    view.start = -low;
    check(view, data);
    if (testing::Test::HasFailure()) FAIL() << "view " << i;
  }
}

TEST(Layout, ExpandedBeyondInt32IsInstantAndExact) {
  const std::vector<float> data = {1.5f, -2.0f, 0.0f};
  const std::int64_t times = std::int64_t{1} << 33;
  const RowState got = measure(View{{times, 3, 4}, {0, 1, 0}, 0}.of(data));
  EXPECT_EQ(got.count, times * 12);
  EXPECT_EQ(got.zeros, times * 4);
  const double n = static_cast<double>(times * 4);
  EXPECT_EQ(got.sum, -0.5 * n);
  EXPECT_EQ(got.sum_sq, 6.25 * n);
  EXPECT_DOUBLE_EQ(got.m2, (6.25 - 0.25 / 3) * n);
  EXPECT_EQ(got.min, -2.0);
  EXPECT_EQ(got.max, 1.5);
}

TEST(Layout, ScalarAndEmpty) {
  const std::vector<float> data = {3.0f};
  const RowState scalar = measure(View{{}, {}, 0}.of(data));
  EXPECT_EQ(scalar.count, 1);
  EXPECT_EQ(scalar.sum, 3.0);
  for (const View& view : {View{{0}, {1}, 0}, View{{5, 0, 3}, {0, 3, 1}, 0}}) {
    TensorView empty = view.of(data);
    empty.data = nullptr;
    EXPECT_TRUE(same(measure(empty), RowState{}));
    EXPECT_TRUE(same(measure(empty, 1e-8, 4), RowState{}));
  }
}

TEST(Layout, ManyTensorsAtOnceEqualOneByOne) {
  const std::vector<float> data = numbers(3 << 18);
  std::vector<View> views;
  for (const std::int64_t n : {0, 1, 5, 4096, 4097, 1 << 18, (1 << 18) + 1, 3 << 18}) {
    views.push_back({{n}, {1}, 0});
    views.push_back({{n / 3, 2}, {3, 1}, 0});
    views.push_back({{4, n / 3}, {0, 3}, 0});
  }
  std::vector<TensorView> tensors;
  for (const View& view : views) tensors.push_back(view.of(data));
  for (const int threads : {1, 2, 3, 8}) {
    std::vector<RowState> got(tensors.size());
    measure(tensors, got, 0.1, threads);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(same(got[i], measure(tensors[i], 0.1))) << i << " " << threads;
    }
  }
}

TEST(Layout, WhatCannotBeReadIsRefused) {
  const std::int64_t n = 4;
  const TensorView device{nullptr, DType::float32, 1, &n, nullptr, Device::cuda, 0, nullptr};
  EXPECT_THROW(measure(device), std::invalid_argument);
  EXPECT_THROW(measure(device, 1e-8, 4), std::invalid_argument);
  const TensorView missing{nullptr, DType::float32, 1, &n, nullptr, Device::cpu, 0, nullptr};
  EXPECT_THROW(measure(missing), std::invalid_argument);
}

}  // namespace
}  // namespace trainmon
