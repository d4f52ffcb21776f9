// Fingerprint and sketch against their definition: every type, length, place, level and layout.
#include "stats/check.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>

#include "odd_float_mode.h"
#include "stats/check_oracle.h"
#include "stats/check_tensor.h"
#include "stats/cpu/gather.h"
#include "stats/cpu/level.h"
#include "stats/oracle.h"

namespace trainmon {
namespace {

using test::levels;
using test::make;
using test::same;
using test::Tensor;

constexpr DType kAll[] = {
    DType::float64,     DType::float32, DType::float16, DType::bfloat16, DType::float8_e4m3fn,
    DType::float8_e5m2, DType::int64,   DType::int32,   DType::int16,    DType::int8,
    DType::uint64,      DType::uint32,  DType::uint16,  DType::uint8,    DType::bool8,
};

bool same_check(const Check& a, const Check& b) {
  return a.fingerprint == b.fingerprint &&
         std::memcmp(a.sketch.data(), b.sketch.data(), sizeof a.sketch) == 0;
}

std::uint64_t oracle_fingerprint(Tensor& tensor, std::int64_t first) {
  return test::fingerprint(tensor.elements(),
                           static_cast<std::uint64_t>(first) * dtype_size(tensor.dtype));
}

void expect_sketch(const Check& got, Tensor& tensor, std::int64_t first) {
  std::vector<double> values(static_cast<std::size_t>(tensor.size));
  if (tensor.size > 0) {
    cpu::widen(tensor.dtype, tensor.elements().data(), tensor.size, values.data());
  }
  const test::SketchOracle want = test::sketch(values, static_cast<std::uint64_t>(first));
  const bool half = tensor.dtype == DType::bfloat16 || tensor.dtype == DType::float16;
  for (std::size_t i = 0; i < 16; ++i) {
    const long double bound = want.magnitude[i] * (half ? 1e-7L : 1e-14L);
    EXPECT_LE(std::fabs(static_cast<long double>(got.sketch[i]) - want.sum[i]), bound) << i;
  }
}

class EveryType : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, EveryType, testing::ValuesIn(kAll),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

void expect_definition(DType dtype, std::int64_t n, std::int64_t first, std::size_t offset,
                       std::mt19937_64& random) {
  SCOPED_TRACE(std::to_string(n) + " from " + std::to_string(first));
  Tensor tensor = make(dtype, n, offset, random);
  set_cpu_level(CpuLevel::baseline);
  Check base;
  const RowState state = measure(tensor.view(), first, base);
  EXPECT_TRUE(same(state, measure(tensor.view())));
  EXPECT_EQ(base.fingerprint, oracle_fingerprint(tensor, first));
  expect_sketch(base, tensor, first);
  for (const CpuLevel level : levels()) {
    set_cpu_level(level);
    Check got;
    EXPECT_TRUE(same(measure(tensor.view(), first, got), state)) << cpu_level_name(level);
    EXPECT_TRUE(same_check(got, base)) << cpu_level_name(level);
  }
  set_cpu_level(detected_cpu_level());
}

TEST_P(EveryType, AgreesWithTheDefinitionAtEveryLevel) {
  std::mt19937_64 random(7);
  for (std::int64_t n = 0; n <= 2000 && !HasFailure(); n += n < 140 ? 1 : 41) {
    const std::int64_t first = n % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 100000);
    expect_definition(GetParam(), n, first, static_cast<std::size_t>(n) % 5, random);
  }
  // Whole blocks, at places where the fused kernels may and may not be used.
  for (const std::int64_t n : {4095, 4096, 4097, 8192, 12288 + 700}) {
    for (const std::int64_t first :
         {0, 1, 15, 16, 64, 256, 768, 1792, 3840, 4096, 1 << 20, 256 * 12345, 256 * 12345 + 8}) {
      if (HasFailure()) return;
      expect_definition(GetParam(), n, first, static_cast<std::size_t>(first) % 3, random);
    }
  }
}

TEST_P(EveryType, AnyBitsGiveTheStateOfMeasureAndOneFingerprint) {
  std::mt19937_64 random(8);
  for (const std::int64_t n : {1, 100, 4096, 9000}) {
    for (const std::int64_t first : {0, 256, 1000}) {
      Tensor tensor = make(GetParam(), n, 1, random, false);
      for (const CpuLevel level : levels()) {
        set_cpu_level(level);
        Check got;
        EXPECT_TRUE(same(measure(tensor.view(), first, got), measure(tensor.view())));
        EXPECT_EQ(got.fingerprint, oracle_fingerprint(tensor, first)) << n << " from " << first;
      }
    }
  }
  set_cpu_level(detected_cpu_level());
}

TEST_P(EveryType, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(9);
  const Tensor tensor = make(GetParam(), 3 * (1 << 18) + 12345, 0, random);
  for (const std::int64_t first : {0, 777}) {
    Check one;
    const RowState state = measure(tensor.view(), first, one);
    for (const int threads : {2, 3, 8}) {
      Check got;
      EXPECT_TRUE(same(measure(tensor.view(), first, got, kDefaultEps, threads), state));
      EXPECT_TRUE(same_check(got, one)) << threads;
    }
  }
}

TEST_P(EveryType, ShardsAddUpToTheWhole) {
  std::mt19937_64 random(10);
  for (int round = 0; round < 20; ++round) {
    Tensor tensor = make(GetParam(), 1 + static_cast<std::int64_t>(random() % 30000), 0, random);
    Check sum;
    std::int64_t begin = 0;
    while (begin < tensor.size) {
      const std::int64_t left = tensor.size - begin;
      const std::int64_t n = 1 + static_cast<std::int64_t>(random()) % left;
      const std::int64_t size = n < 1 ? left : n;
      Check shard;
      measure(tensor.part(begin, size), begin, shard);
      add(sum, shard);
      begin += size;
    }
    Check whole;
    measure(tensor.view(), 0, whole);
    EXPECT_EQ(sum.fingerprint, whole.fingerprint);
    expect_sketch(sum, tensor, 0);
  }
}

// A view of a buffer, and the same elements in C order.
void expect_layout(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides,
                   std::int64_t start, DType dtype) {
  std::mt19937_64 random(11);
  const Tensor tensor = make(dtype, 60000, 0, random);
  const std::size_t item = dtype_size(dtype);
  const TensorView view{tensor.bytes.data() + static_cast<std::size_t>(start) * item,
                        dtype,
                        static_cast<int>(sizes.size()),
                        sizes.data(),
                        strides.data(),
                        Device::cpu,
                        0,
                        nullptr};
  Tensor copy{{}, 0, element_count(view), dtype};
  std::vector<std::int64_t> index(sizes.size(), 0);
  for (std::int64_t i = 0; i < copy.size; ++i) {
    std::int64_t at = start;
    for (std::size_t d = 0; d < sizes.size(); ++d) at += index[d] * strides[d];
    const std::byte* from = tensor.bytes.data() + static_cast<std::size_t>(at) * item;
    copy.bytes.insert(copy.bytes.end(), from, from + item);
    for (std::size_t d = sizes.size(); d > 0 && ++index[d - 1] == sizes[d - 1]; --d) {
      index[d - 1] = 0;
    }
  }
  for (const std::int64_t first : {0, 300, 512}) {
    Check want;
    measure(copy.view(), first, want);
    for (const int threads : {1, 2}) {
      Check got;
      EXPECT_TRUE(same(measure(view, first, got, kDefaultEps, threads), measure(view)));
      EXPECT_TRUE(same_check(got, want));
    }
    EXPECT_EQ(want.fingerprint, oracle_fingerprint(copy, first));
  }
}

TEST(CheckLayout, IndicesAreThoseOfCOrder) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::int8}) {
    expect_layout({100, 90}, {90, 1}, 0, dtype);
    expect_layout({100, 90}, {1, 100}, 0, dtype);              // transposed
    expect_layout({50, 90}, {180, 2}, 3, dtype);               // stepped
    expect_layout({9000}, {-1}, 8999, dtype);                  // turned round
    expect_layout({2, 3, 20, 10}, {600, 1, 30, 3}, 0, dtype);  // channels last
    expect_layout({7, 500, 3}, {0, 1, 0}, 0, dtype);           // expanded
    expect_layout({5000}, {0}, 5, dtype);
    expect_layout({600, 500}, {1, 100}, 0, dtype);  // overlapping, more than a chunk
    expect_layout({}, {}, 4, dtype);
    expect_layout({1, 40, 1}, {7, 1, 0}, 0, dtype);
    expect_layout({3, 0}, {1, 1}, 0, dtype);
  }
}

TEST(Check, RefusesWhatIsNotOnTheCpu) {
  const std::int64_t n = 4;
  TensorView view{&n, DType::float32, 1, &n, nullptr, Device::cuda, 0, nullptr};
  Check check;
  EXPECT_THROW(measure(view, 0, check), std::invalid_argument);
}

TEST(Sketch, NonFiniteElementsTouchTheirLaneOnly) {
  std::mt19937_64 random(14);
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    Tensor tensor = make(dtype, 8192, 0, random);
    const std::uint64_t ones = ~std::uint64_t{0};
    const std::uint64_t infinity = dtype == DType::float64    ? std::uint64_t{0x7ff} << 52
                                   : dtype == DType::float32  ? 0xff800000
                                   : dtype == DType::bfloat16 ? 0xff80
                                                              : 0xfc00;
    const std::size_t item = dtype_size(dtype);
    std::memcpy(tensor.elements().data() + (4096 + 5) * item, &ones, item);
    std::memcpy(tensor.elements().data() + (4096 + 39) * item, &infinity, item);
    for (const CpuLevel level : levels()) {
      set_cpu_level(level);
      Check check;
      measure(tensor.view(), 0, check);
      for (std::size_t i = 0; i < 16; ++i) {
        EXPECT_EQ(std::isnan(check.sketch[i]), i == 5) << i;
        EXPECT_EQ(std::isinf(check.sketch[i]), i == 7) << i;
      }
    }
    set_cpu_level(detected_cpu_level());
  }
}

TEST(Sketch, NumbersAtTheEndsOfTheRangeStayFinite) {
  for (const std::uint16_t bits : {std::uint16_t{0x7f7f}, std::uint16_t{0x0001}}) {
    Tensor tensor{std::vector<std::byte>(8192 * 2), 0, 8192, DType::bfloat16};
    for (std::size_t i = 0; i < 8192; ++i) std::memcpy(&tensor.bytes[2 * i], &bits, 2);
    Check check;
    measure(tensor.view(), 0, check);
    expect_sketch(check, tensor, 0);
  }
}

TEST(Sketch, IsAsLongAsAConstant) {
  for (const std::int64_t n : {1, 16, 32, 64, 96, 128, 192, 256, 512, 768, 4096, 5120, 100000}) {
    std::vector<float> ones(static_cast<std::size_t>(n), 1.0f);
    const TensorView view{ones.data(), DType::float32, 1, &n, nullptr, Device::cpu, 0, nullptr};
    Check check;
    measure(view, 0, check);
    double length = 0;
    for (const double x : check.sketch) length += x * x;
    const double ratio = std::sqrt(length / static_cast<double>(n));
    EXPECT_GE(ratio, 0.5) << n;
    EXPECT_LE(ratio, 2.6) << n;
  }
}

// Written by these kernels on x86-64, for other machines to reproduce.
TEST(Sketch, BitsAreThoseOfEveryMachine) {
  const std::pair<DType, std::uint64_t> wanted[] = {
      {DType::float64, 0x190cd729ef41f902},
      {DType::float32, 0x932e462538d70610},
      {DType::bfloat16, 0x3439da3f8882428c},
      {DType::float16, 0x0c591d040190be67},
  };
  for (const auto& [dtype, want] : wanted) {
    Tensor tensor{std::vector<std::byte>(70001 * dtype_size(dtype)), 0, 70001, dtype};
    const std::size_t item = dtype_size(dtype);
    for (std::size_t i = 0; i < 70001; ++i) {
      // Any sign and fraction, sixteen exponents.
      std::uint64_t bits = test::splitmix64(i);
      const std::uint64_t exponent = bits >> 48 & 15;
      if (dtype == DType::float64) bits = (bits & ~(0x7ffull << 52)) | (1000 + exponent) << 52;
      if (dtype == DType::float32) bits = (bits & 0x807fffff) | (110 + exponent) << 23;
      if (dtype == DType::bfloat16) bits = (bits & 0x807f) | (110 + exponent) << 7;
      if (dtype == DType::float16) bits = (bits & 0x83ff) | (5 + exponent) << 10;
      std::memcpy(&tensor.bytes[i * item], &bits, item);
    }
    std::uint64_t got = 0;
    for (const std::int64_t first : {0, 100}) {
      Check check;
      measure(tensor.view(), first, check);
      for (const double x : check.sketch) {
        got = test::splitmix64(got ^ std::bit_cast<std::uint64_t>(x));
      }
    }
    EXPECT_EQ(got, want) << dtype_name(dtype) << std::hex << " 0x" << got;
  }
}

#if defined(TRAINMON_HAS_ODD_FLOAT_MODE)
TEST(Sketch, TheModeOfTheProcessorDoesNotMatter) {
  std::mt19937_64 random(15);
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    Tensor tensor = make(dtype, 300007, 0, random);
    for (std::size_t i = 0; i < 300007; i += 3) {  // every third one is subnormal or a zero
      const std::uint64_t few = random() & 0x7f;
      std::memcpy(tensor.elements().data() + i * dtype_size(dtype), &few, dtype_size(dtype));
    }
    Check want;
    measure(tensor.view(), 3, want);
    Check got;
    {
      const test::OddFloatMode mode;
      measure(tensor.view(), 3, got, kDefaultEps, 2);
    }
    EXPECT_TRUE(same_check(got, want));
  }
}
#endif

}  // namespace
}  // namespace trainmon
