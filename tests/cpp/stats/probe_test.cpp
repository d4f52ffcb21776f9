// The probe against loops over single elements: every type, length, alignment, level and layout.
#include "trainmon/probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>

#include "odd_float_mode.h"
#include "stats/cpu/level.h"
#include "stats/oracle.h"

namespace trainmon {
namespace {

using test::levels;
using test::same;

constexpr DType kAll[] = {
    DType::float64,     DType::float32, DType::float16, DType::bfloat16, DType::float8_e4m3fn,
    DType::float8_e5m2, DType::int64,   DType::int32,   DType::int16,    DType::int8,
    DType::uint64,      DType::uint32,  DType::uint16,  DType::uint8,    DType::bool8,
};

struct Case {
  std::vector<std::byte> bytes;
  std::size_t offset = 0;
  std::int64_t size = 0;
  DType dtype = DType::float32;

  TensorView view() const {
    return {bytes.data() + offset, dtype, 1, &size, nullptr, Device::cpu, 0, nullptr};
  }
};

// Any bits there can be: NaN with either sign, both zeros, subnormal numbers, infinities.
Case any_bits(DType dtype, std::int64_t n, std::size_t offset, std::mt19937_64& random) {
  Case data{{}, offset, n, dtype};
  data.bytes.resize(offset + static_cast<std::size_t>(n) * dtype_size(dtype) + 1);
  for (std::byte& byte : data.bytes) byte = static_cast<std::byte>(random());
  // Whole words of one byte value are zeros, infinities and NaN in one format or another.
  for (std::size_t i = offset; i + 8 < data.bytes.size(); i += 8) {
    if (random() % 4 == 0) std::memset(data.bytes.data() + i, random() % 2 == 0 ? 0 : 0xff, 8);
  }
  if (dtype == DType::bool8) {
    for (std::byte& byte : data.bytes) byte &= std::byte{1};
  }
  return data;
}

ProbeRequest everything(Digest digest = Digest::fast64) {
  ProbeRequest request;
  request.intervals = true;
  request.bounds = {-1.0, -1e-39, 0.0, 1e-3, 1.0, 3e4, 1e30};
  request.signs = Signs::ternary;
  request.digest = digest;
  return request;
}

void expect_same(const Probe& got, const Probe& want) {
  EXPECT_TRUE(same(got.state, want.state));
  EXPECT_EQ(got.intervals, want.intervals);
  EXPECT_EQ(got.exact_zeros, want.exact_zeros);
  EXPECT_EQ(got.signs, want.signs);
  EXPECT_EQ(got.digest, want.digest);
}

bool bit(const std::vector<std::byte>& plane, std::size_t first_byte, std::int64_t i) {
  const auto at = first_byte + static_cast<std::size_t>(i / 8);
  return (plane[at] >> static_cast<int>(i % 8) & std::byte{1}) != std::byte{0};
}

// Signs and intervals of numbers, one by one. `T` is the type in which bounds are compared.
template <class T>
void check(const Probe& got, const std::vector<T>& values, const std::vector<double>& bounds) {
  const auto n = static_cast<std::int64_t>(values.size());
  const std::size_t plane = static_cast<std::size_t>((n + 7) / 8);
  ASSERT_EQ(got.signs.size(), 2 * plane);
  std::vector<std::int64_t> intervals(bounds.size() + 1, 0);
  std::int64_t zeros = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const T x = values[static_cast<std::size_t>(i)];
    ASSERT_EQ(bit(got.signs, 0, i), x > T{0}) << i;
    ASSERT_EQ(bit(got.signs, plane, i), x < T{0}) << i;
    zeros += x == T{0};
    std::size_t k = 0;
    while (k < bounds.size() && !(x <= static_cast<T>(bounds[k]))) ++k;
    ++intervals[k];
  }
  for (std::int64_t i = n; i < static_cast<std::int64_t>(8 * plane); ++i) {
    ASSERT_FALSE(bit(got.signs, 0, i));
    ASSERT_FALSE(bit(got.signs, plane, i));
  }
  EXPECT_EQ(got.intervals, intervals);
  EXPECT_EQ(got.exact_zeros, zeros);
}

std::vector<std::int64_t> lengths() {
  std::vector<std::int64_t> all;
  for (std::int64_t n = 0; n <= 70; ++n) all.push_back(n);
  for (const std::int64_t blocks : {1, 2}) {
    for (const std::int64_t off : {-33, -31, -8, -1, 0, 1, 7, 16, 33}) {
      all.push_back(blocks * 4096 + off);
    }
  }
  return all;
}

class EveryType : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, EveryType, testing::ValuesIn(kAll),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

TEST_P(EveryType, EveryLevelGivesTheSameAndTheStateOfMeasure) {
  std::mt19937_64 random(3);
  for (const std::int64_t n : lengths()) {
    const Case data = any_bits(GetParam(), n, static_cast<std::size_t>(n) % 5, random);
    set_cpu_level(CpuLevel::baseline);
    const Probe first = probe(data.view(), everything());
    for (const CpuLevel level : levels()) {
      set_cpu_level(level);
      expect_same(probe(data.view(), everything()), first);
      EXPECT_TRUE(same(first.state, measure(data.view())));
      if (HasFailure()) FAIL() << cpu_level_name(level) << " " << n;
    }
  }
  set_cpu_level(detected_cpu_level());
}

TEST_P(EveryType, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(11);
  const Case data = any_bits(GetParam(), 3 * (1 << 18) + 12345, 0, random);
  for (const Digest digest : {Digest::crc32, Digest::md5, Digest::fast64}) {
    const Probe one = probe(data.view(), everything(digest));
    for (const int threads : {2, 3, 8}) {
      expect_same(probe(data.view(), everything(digest), threads), one);
    }
  }
}

TEST(Probe, Float32AgreesWithSingleElements) {
  std::mt19937_64 random(5);
  for (const CpuLevel level : levels()) {
    set_cpu_level(level);
    for (const std::int64_t n : lengths()) {
      const Case data = any_bits(DType::float32, n, static_cast<std::size_t>(n) % 5, random);
      std::vector<float> values(static_cast<std::size_t>(n));
      if (n > 0) std::memcpy(values.data(), data.bytes.data() + data.offset, values.size() * 4);
      check(probe(data.view(), everything()), values, everything().bounds);
      if (HasFailure()) FAIL() << cpu_level_name(level) << " " << n;
    }
  }
}

TEST(Probe, EveryNumberOfSixteenBits) {
  std::vector<std::uint16_t> all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const std::int64_t n = 1 << 16;
  std::vector<float> brain, half;
  for (const std::uint32_t bits : all) {
    brain.push_back(std::bit_cast<float>(bits << 16));
    const auto field = static_cast<int>(bits >> 10 & 31);
    const auto fraction = static_cast<float>(bits & 1023);
    float x = field == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, field - 25);
    if (field == 31) x = fraction == 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
    half.push_back(bits >> 15 ? -x : x);
  }
  for (const CpuLevel level : levels()) {
    set_cpu_level(level);
    TensorView view{all.data(), DType::bfloat16, 1, &n, nullptr, Device::cpu, 0, nullptr};
    check(probe(view, everything()), brain, everything().bounds);
    view.dtype = DType::float16;
    check(probe(view, everything()), half, everything().bounds);
  }
}

TEST(Probe, Float64AndBigIntegersAreComparedInFloat64) {
  const std::vector<double> x = {5e-324,
                                 -5e-324,
                                 0.0,
                                 -0.0,
                                 1.0,
                                 std::nextafter(1.0, 2.0),
                                 1e30,
                                 1e300,
                                 std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity(),
                                 std::nan("")};
  const auto n = static_cast<std::int64_t>(x.size());
  check(probe({x.data(), DType::float64, 1, &n, nullptr, Device::cpu, 0, nullptr}, everything()), x,
        everything().bounds);
  const std::vector<std::uint64_t> big = {0, 1, 1ull << 63, ~0ull, (1ull << 63) + 5};
  std::vector<double> numbers;
  for (const std::uint64_t i : big) numbers.push_back(static_cast<double>(i));
  const auto m = static_cast<std::int64_t>(big.size());
  check(probe({big.data(), DType::uint64, 1, &m, nullptr, Device::cpu, 0, nullptr}, everything()),
        numbers, everything().bounds);
}

TEST(Probe, BoundsBeyondTheTypeHoldEveryNumberButNotTheInfinity) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {-inf, -3e38f, 0.0f, 3e38f, inf, std::nanf("")};
  const auto n = static_cast<std::int64_t>(x.size());
  const TensorView view{x.data(), DType::float32, 1, &n, nullptr, Device::cpu, 0, nullptr};
  ProbeRequest request;
  request.intervals = true;
  request.bounds = {-1e300, -1e200, 1e200, 1e300};
  using Counts = std::vector<std::int64_t>;
  EXPECT_EQ(probe(view, request).intervals, (Counts{1, 0, 3, 0, 2}));
  // Different numbers, the same float32.
  request.bounds = {-1e-60, 0.0, 1e-60, 1.0, 1.0 + 1e-12};
  EXPECT_EQ(probe(view, request).intervals, (Counts{3, 0, 0, 0, 0, 3}));
  request.bounds = {};
  EXPECT_EQ(probe(view, request).intervals, Counts{6});
  EXPECT_EQ(probe(view, request).exact_zeros, 1);
}

TEST(Probe, ManyBoundsAreSearchedWithTheSameResult) {
  std::mt19937_64 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> x(5000);
  for (float& value : x) value = normal(random);
  x[3] = std::nanf("");
  x[4] = std::numeric_limits<float>::infinity();
  x[5] = 0.0f;
  const auto n = static_cast<std::int64_t>(x.size());
  for (const int count : {1, 2, 3, 4, 5, 7, 63, 64, 65, 100, 1000}) {
    ProbeRequest request = everything();
    request.bounds.clear();
    for (int i = 0; i < count; ++i) request.bounds.push_back(-2.0 + 4.0 * i / count);
    request.bounds.back() = static_cast<double>(x[17]) > request.bounds.back()
                                ? static_cast<double>(x[17])
                                : request.bounds.back();
    check(probe({x.data(), DType::float32, 1, &n, nullptr, Device::cpu, 0, nullptr}, request), x,
          request.bounds);
  }
}

TEST(Probe, SignsAndDigestsFollowTheOrderOfTheViewNotOfMemory) {
  std::mt19937_64 random(13);
  std::vector<float> data(64 * 300);
  for (float& x : data) x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  struct View {
    std::vector<std::int64_t> sizes, strides;
    std::int64_t start;
  };
  for (const View& view : {View{{300, 64}, {1, 300}, 0}, View{{64, 300}, {-300, -1}, 64 * 300 - 1},
                           View{{10, 8, 30}, {0, 30, 1}, 5}, View{{7, 5000}, {0, 0}, 9},
                           View{{50, 1, 40}, {81, 7, 2}, 3}, View{{}, {}, 4},
                           View{{64, 300}, {300, 1}, 0}, View{{3, 0, 5}, {5, 5, 1}, 0}}) {
    const TensorView tensor{data.data() + view.start,
                            DType::float32,
                            static_cast<int>(view.sizes.size()),
                            view.sizes.data(),
                            view.strides.data(),
                            Device::cpu,
                            0,
                            nullptr};
    std::vector<float> plain;
    const std::int64_t count = element_count(tensor);
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t rest = i, at = view.start;
      for (std::size_t d = view.sizes.size(); d-- > 0; rest /= view.sizes[d]) {
        at += rest % view.sizes[d] * view.strides[d];
      }
      plain.push_back(data[static_cast<std::size_t>(at)]);
    }
    for (const Digest digest : {Digest::crc32, Digest::md5, Digest::fast64}) {
      const Probe got = probe(tensor, everything(digest), 2);
      check(got, plain, everything().bounds);
      const TensorView copy{plain.data(), DType::float32, 1, &count,
                            nullptr,      Device::cpu,    0, nullptr};
      EXPECT_EQ(got.digest, probe(copy, everything(digest)).digest);
      EXPECT_TRUE(same(got.state, measure(tensor)));
    }
  }
}

#ifdef TRAINMON_HAS_ODD_FLOAT_MODE
TEST(Probe, TheCallersFloatingPointModeIsNeitherUsedNorChanged) {
  const std::vector<float> x = {1e-40f, -1e-40f, 1e-45f, 0.0f, 1.0f, -2.0f, 1e-39f, -1e-45f};
  const auto n = static_cast<std::int64_t>(x.size());
  const TensorView view{x.data(), DType::float32, 1, &n, nullptr, Device::cpu, 0, nullptr};
  const Probe want = probe(view, everything());
  check(want, x, everything().bounds);
  Probe got;
  {
    const test::OddFloatMode odd;
    const auto before = odd.read();
    got = probe(view, everything());
    EXPECT_EQ(odd.read(), before);
  }
  expect_same(got, want);
}
#endif

TEST(Probe, NothingIsMadeThatWasNotAskedFor) {
  const std::vector<float> x(100, 1.0f);
  const std::int64_t n = 100;
  const TensorView view{x.data(), DType::float32, 1, &n, nullptr, Device::cpu, 0, nullptr};
  const Probe got = probe(view, {});
  EXPECT_TRUE(same(got.state, measure(view)));
  EXPECT_TRUE(got.intervals.empty());
  EXPECT_TRUE(got.signs.empty());
  EXPECT_EQ(got.digest, "");
  EXPECT_EQ(got.exact_zeros, 0);
}

TEST(Probe, RefusesWhatItCannotRead) {
  const float x = 1.0f;
  const std::int64_t n = 1;
  TensorView view{&x, DType::float32, 1, &n, nullptr, Device::cpu, 0, nullptr};
  ProbeRequest request;
  request.intervals = true;
  for (const auto& bounds : {std::vector<double>{1.0, 1.0},
                             {2.0, 1.0},
                             {std::nan("")},
                             {0.0, std::nan("")},
                             {0.0, std::nan(""), 1.0}}) {
    request.bounds = bounds;
    EXPECT_THROW(probe(view, request), std::invalid_argument);
  }
  request.bounds = {};
  view.device = Device::cuda;
  EXPECT_THROW(probe(view, request), std::invalid_argument);
  view.device = Device::cpu;
  view.data = nullptr;
  EXPECT_THROW(probe(view, request), std::invalid_argument);
}

TEST(Digest, NamesGoBothWays) {
  for (const Digest digest : {Digest::none, Digest::md5, Digest::crc32, Digest::fast64}) {
    EXPECT_EQ(digest_from_name(digest_name(digest)), digest);
  }
  EXPECT_EQ(digest_from_name("sha1"), std::nullopt);
}

}  // namespace
}  // namespace trainmon
