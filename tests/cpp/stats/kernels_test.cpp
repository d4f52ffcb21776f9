// Every element type, length, alignment and level against a long double oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <tuple>

#include "odd_float_mode.h"
#include "stats/cpu/level.h"
#include "stats/oracle.h"

namespace trainmon {
namespace {

using test::levels;
using test::Oracle;
using test::oracle;
using test::same;

// Bytes of `n` elements plus their float64 values.
struct Data {
  DType dtype;
  std::vector<std::byte> bytes;
  std::vector<double> values;
  double smallest_normal = 0;
  std::int64_t size = 0;

  TensorView view() {
    return {bytes.data() + offset, dtype, 1, &size, nullptr, Device::cpu, 0, nullptr};
  }
  std::size_t offset = 0;
};

float as_float(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// Straight from the definition of the formats: sign, exponent field, fraction.
double decode(std::uint32_t bits, int exponent_bits, int fraction_bits, bool e4m3fn) {
  const std::uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const auto field = static_cast<int>((bits >> fraction_bits) & ((1u << exponent_bits) - 1));
  const double sign = (bits >> (exponent_bits + fraction_bits)) & 1 ? -1.0 : 1.0;
  const int all = (1 << exponent_bits) - 1;
  const int bias = all / 2;
  const double scale = std::ldexp(1.0, -fraction_bits);
  if (e4m3fn && field == all && fraction == 7) return std::nan("");
  if (!e4m3fn && field == all) {
    return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  if (field == 0) return sign * std::ldexp(fraction * scale, 1 - bias);
  return sign * std::ldexp(1.0 + fraction * scale, field - bias);
}

enum class Fill { normal, bits, shifted, tiny };

template <class T>
void put(Data& data, std::size_t i, T value) {
  std::memcpy(data.bytes.data() + data.offset + i * sizeof(T), &value, sizeof(T));
}

Data make(DType dtype, std::int64_t n, Fill fill, std::size_t offset, std::mt19937_64& random) {
  Data data;
  data.dtype = dtype;
  data.size = n;
  data.offset = offset;
  data.bytes.resize(offset + static_cast<std::size_t>(n) * dtype_size(dtype) + 1);
  std::normal_distribution<double> normal;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const std::uint64_t bits = random();
    double x = normal(random) * 1e-3;
    if (fill == Fill::shifted) x = 1.0 + x * 1e-3;
    if (fill == Fill::tiny) x *= 1e-38;
    switch (dtype) {
      case DType::float64: {
        data.smallest_normal = std::numeric_limits<double>::min();
        if (fill == Fill::bits) x = std::bit_cast<double>(bits);
        put(data, i, x);
        data.values.push_back(x);
        break;
      }
      case DType::float32: {
        data.smallest_normal = 0x1p-126;
        const float f =
            fill == Fill::bits ? as_float(static_cast<std::uint32_t>(bits)) : static_cast<float>(x);
        put(data, i, f);
        data.values.push_back(static_cast<double>(f));
        break;
      }
      case DType::bfloat16: {
        data.smallest_normal = 0x1p-126;
        const auto half = static_cast<std::uint16_t>(
            fill == Fill::bits ? bits : std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 16);
        put(data, i, half);
        data.values.push_back(decode(half, 8, 7, false));
        break;
      }
      case DType::float16: {
        data.smallest_normal = 0x1p-14;
        const auto half = static_cast<std::uint16_t>(bits);
        put(data, i, half);
        data.values.push_back(decode(half, 5, 10, false));
        break;
      }
      case DType::float8_e5m2: {
        data.smallest_normal = 0x1p-14;
        put(data, i, static_cast<std::uint8_t>(bits));
        data.values.push_back(decode(bits & 0xff, 5, 2, false));
        break;
      }
      case DType::float8_e4m3fn: {
        data.smallest_normal = 0x1p-6;
        put(data, i, static_cast<std::uint8_t>(bits));
        data.values.push_back(decode(bits & 0xff, 4, 3, true));
        break;
      }
#define TRAINMON_INTEGER(name, type)                                     \
  case DType::name: {                                                    \
    put(data, i, static_cast<type>(bits));                               \
    data.values.push_back(static_cast<double>(static_cast<type>(bits))); \
    break;                                                               \
  }
        TRAINMON_INTEGER(int64, std::int64_t)
        TRAINMON_INTEGER(int32, std::int32_t)
        TRAINMON_INTEGER(int16, std::int16_t)
        TRAINMON_INTEGER(int8, std::int8_t)
        TRAINMON_INTEGER(uint64, std::uint64_t)
        TRAINMON_INTEGER(uint32, std::uint32_t)
        TRAINMON_INTEGER(uint16, std::uint16_t)
        TRAINMON_INTEGER(uint8, std::uint8_t)
#undef TRAINMON_INTEGER
      case DType::bool8:
        put(data, i, static_cast<std::uint8_t>(bits & 1));
        data.values.push_back(static_cast<double>(bits & 1));
        break;
    }
  }
  return data;
}

void check(const RowState& got, const Oracle& want, const Data& data) {
  EXPECT_EQ(got.count, want.count);
  EXPECT_EQ(got.nans, want.nans);
  EXPECT_EQ(got.pos_infs, want.pos_infs);
  EXPECT_EQ(got.neg_infs, want.neg_infs);
  EXPECT_EQ(got.zeros, want.zeros);
  EXPECT_EQ(got.subnormals, want.subnormals);
  EXPECT_EQ(got.min, want.min);
  EXPECT_EQ(got.max, want.max);
  const auto n = static_cast<long double>(got.finite());
  if (n == 0) return;
  EXPECT_EQ(got.absmax, std::max(std::fabs(want.min), std::fabs(want.max)));
  // Formats of at most sixteen bits are summed in float32 for up to 1,024 elements.
  const bool narrow = dtype_size(data.dtype) <= 2 && data.smallest_normal > 0;
  EXPECT_LE(std::fabs(got.mean - want.mean), (narrow ? 2e-8L : 1e-15L) * want.sum_abs / n) << n;
  const long double sum_sq = std::ldexp(static_cast<long double>(got.sum_sq), 2 * got.exponent);
  const long double m2 = std::ldexp(static_cast<long double>(got.m2), 2 * got.exponent);
  EXPECT_LE(std::fabs(sum_sq - want.sum_sq), (narrow ? 4e-8L : 1e-14L) * want.sum_sq);
  EXPECT_LE(std::fabs(m2 - want.m2), (narrow ? 4e-7L : 1e-11L) * want.m2 + 1e-30L * want.sum_sq);
  if (data.dtype != DType::float64) {
    EXPECT_EQ(got.exponent, 0);
  }
}

constexpr DType kAll[] = {
    DType::float64,     DType::float32, DType::float16, DType::bfloat16, DType::float8_e4m3fn,
    DType::float8_e5m2, DType::int64,   DType::int32,   DType::int16,    DType::int8,
    DType::uint64,      DType::uint32,  DType::uint16,  DType::uint8,    DType::bool8,
};

class EveryType : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, EveryType, testing::ValuesIn(kAll),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

TEST_P(EveryType, AgreesWithTheOracleAtEveryLengthAlignmentAndLevel) {
  std::mt19937_64 random(7);
  const std::int64_t block = 4096;
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 1; n <= 70; ++n) lengths.push_back(n);
  for (const std::int64_t blocks : {1, 2, 3}) {
    for (const std::int64_t off : {-33, -32, -31, -16, -1, 0, 1, 15, 17, 32}) {
      lengths.push_back(blocks * block + off);
    }
  }
  lengths.push_back((1 << 18) + 1);
  const CpuLevel before = cpu_level();
  for (const std::int64_t n : lengths) {
    for (const Fill fill : {Fill::normal, Fill::bits, Fill::shifted, Fill::tiny}) {
      if (n > 4 * block && fill != Fill::normal) continue;
      Data data = make(GetParam(), n, fill, static_cast<std::size_t>(n) % 5, random);
      const double eps = fill == Fill::tiny ? 1e-41 : n % 3 == 0 ? 0.0 : 5e-4;
      const Oracle want = oracle(data.values, eps, data.smallest_normal);
      set_cpu_level(CpuLevel::baseline);
      const RowState first = measure(data.view(), eps);
      check(first, want, data);
      for (const CpuLevel level : levels()) {
        set_cpu_level(level);
        EXPECT_TRUE(same(measure(data.view(), eps), first)) << cpu_level_name(level) << " " << n;
      }
      if (testing::Test::HasFailure()) {
        FAIL() << "length " << n << " fill " << static_cast<int>(fill);
      }
    }
  }
  set_cpu_level(before);
}

TEST_P(EveryType, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(11);
  const std::int64_t n = 5 * (1 << 18) + 12345;
  Data data = make(GetParam(), n, Fill::normal, 0, random);
  const RowState one = measure(data.view());
  for (int threads = 2; threads <= 8; ++threads) {
    EXPECT_TRUE(same(measure(data.view(), kDefaultEps, threads), one)) << threads;
  }
}

TEST(Kernels, NonFiniteElementsAreCountedWhereverTheyAre) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const CpuLevel level : levels()) {
    set_cpu_level(level);
    for (const std::int64_t n : {1, 2, 31, 33, 4095, 4097, 9000}) {
      for (std::int64_t at = 0; at<n; at += n> 100 ? 61 : 1) {
        std::vector<float> x(static_cast<std::size_t>(n), 2.0f);
        for (const float bad : {std::nanf(""), -std::nanf(""), inf, -inf}) {
          x[static_cast<std::size_t>(at)] = bad;
          const RowState got =
              measure({x.data(), DType::float32, 1, &n, nullptr, Device::cpu, 0, nullptr});
          ASSERT_EQ(got.nans, std::isnan(bad));
          ASSERT_EQ(got.pos_infs, bad == inf);
          ASSERT_EQ(got.neg_infs, bad == -inf);
          ASSERT_EQ(got.sum, 2.0 * static_cast<double>(n - 1));
          ASSERT_EQ(got.min, n > 1 ? 2.0 : std::numeric_limits<double>::infinity());
          ASSERT_EQ(got.m2, 0.0);
        }
      }
    }
  }
  set_cpu_level(detected_cpu_level());
}

TEST(Kernels, SquaresOfBfloat16BeyondFloat32AreExact) {
  // One number of a size among ordinary ones, zeros or its like; 2^-63 and 2^60 are the limits.
  const std::int64_t n = 4096 + 40;
  for (const int exponent :
       {-133, -127, -126, -68, -67, -64, -63, -62, 0, 58, 59, 60, 61, 64, 127}) {
    for (const double others : {0.0, 1.0, std::ldexp(1.0, exponent)}) {
      for (const std::int64_t at : {0, 1, 1023, 1024, 4095, 4096, 4135}) {
        std::vector<std::uint16_t> x(static_cast<std::size_t>(n));
        const auto bits = [](double value) {
          return static_cast<std::uint16_t>(
              std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16);
        };
        for (std::uint16_t& value : x) value = bits(others);
        x[static_cast<std::size_t>(at)] = bits(-std::ldexp(1.5, exponent));
        std::vector<double> values;
        for (const std::uint16_t value : x) values.push_back(decode(value, 8, 7, false));
        const Oracle want = oracle(values, 0x1p-70, 0x1p-126);
        set_cpu_level(CpuLevel::baseline);
        const TensorView view{x.data(), DType::bfloat16, 1, &n, nullptr, Device::cpu, 0, nullptr};
        const RowState first = measure(view, 0x1p-70);
        EXPECT_EQ(first.zeros, want.zeros);
        EXPECT_EQ(first.subnormals, want.subnormals);
        EXPECT_EQ(first.min, want.min);
        EXPECT_EQ(first.max, want.max);
        EXPECT_LE(std::fabs(first.sum_sq - want.sum_sq), 4e-8L * want.sum_sq);
        for (const CpuLevel level : levels()) {
          set_cpu_level(level);
          EXPECT_TRUE(same(measure(view, 0x1p-70), first)) << cpu_level_name(level);
        }
        ASSERT_FALSE(testing::Test::HasFailure()) << exponent << " " << others << " " << at;
      }
    }
  }
  set_cpu_level(detected_cpu_level());
}

#if defined(__linux__) && defined(__x86_64__)
TEST(Kernels, TheLevelFoundIsTheOneTheKernelOfThisMachineLists) {
  std::set<std::string> flags;
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; flags.empty() && std::getline(cpuinfo, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) flags.insert(word);
  }
  ASSERT_FALSE(flags.empty());
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(), [&](auto name) { return flags.count(name); });
  };
  const bool avx2 = has({"avx2", "fma", "f16c"});
  const bool avx512 = avx2 && has({"avx512f", "avx512bw", "avx512dq", "avx512vl"});
  EXPECT_EQ(detected_cpu_level(), avx512 ? CpuLevel::avx512
                                  : avx2 ? CpuLevel::avx2
                                         : CpuLevel::baseline);
}
#endif

TEST(Kernels, EpsIsComparedExactlyInEveryFormat) {
  const double inf = std::numeric_limits<double>::infinity();
  // Every finite number of the narrow formats, against eps that are among them, between and beyond.
  for (const auto& [dtype, exponent_bits, fraction_bits] :
       {std::tuple{DType::bfloat16, 8, 7}, std::tuple{DType::float16, 5, 10},
        std::tuple{DType::float8_e4m3fn, 4, 3}, std::tuple{DType::float8_e5m2, 5, 2}}) {
    std::vector<double> values;
    std::vector<std::byte> bytes;
    for (std::uint32_t bits = 0; bits < 1u << (exponent_bits + fraction_bits + 1); ++bits) {
      const double x = decode(bits, exponent_bits, fraction_bits, dtype == DType::float8_e4m3fn);
      if (!std::isfinite(x)) continue;
      values.push_back(x);
      const auto* p = reinterpret_cast<const std::byte*>(&bits);
      bytes.insert(bytes.end(), p, p + dtype_size(dtype));
    }
    std::vector<double> all_eps = {0.0, 1e-50, 1e-45, 1.5e-45, 1e-8, 1.0000001, 3e38, 1e39, inf};
    for (std::size_t i = 0; i < values.size(); i += values.size() / 61 + 1) {
      const double x = std::fabs(values[i]);
      all_eps.insert(all_eps.end(), {x, std::nextafter(x, inf), std::nextafter(x, 0.0)});
    }
    for (const double eps : all_eps) {
      std::int64_t want = 0;
      for (const double x : values) want += std::fabs(x) < eps;
      const auto n = static_cast<std::int64_t>(values.size());
      EXPECT_EQ(measure({bytes.data(), dtype, 1, &n, nullptr, Device::cpu, 0, nullptr}, eps).zeros,
                want)
          << dtype_name(dtype) << " " << eps;
    }
  }
  for (const double eps :
       {0.0, 1e-50, 1e-45, 1.5e-45, 1e-8, 0.1, 1.0, 1.0000001, 3e38, 1e39, 1e308, 5e-324, inf}) {
    std::vector<float> x;
    std::vector<double> y;
    const auto near = static_cast<float>(std::min(eps, 3.4e38));
    for (float f :
         {near, std::nextafter(near, 0.0f), std::nextafter(near, 1e38f), 0.0f, -near, -0.0f}) {
      x.push_back(f);
      y.push_back(static_cast<double>(f));
    }
    for (double d : {std::min(eps, 1e308), std::nextafter(std::min(eps, 1e308), 0.0)})
      y.push_back(d);
    std::int64_t want = 0, want_double = 0;
    for (float f : x) want += std::fabs(static_cast<double>(f)) < eps;
    for (double d : y) want_double += std::fabs(d) < eps;
    const auto n = static_cast<std::int64_t>(x.size());
    const auto m = static_cast<std::int64_t>(y.size());
    EXPECT_EQ(
        measure({x.data(), DType::float32, 1, &n, nullptr, Device::cpu, 0, nullptr}, eps).zeros,
        want)
        << eps;
    EXPECT_EQ(
        measure({y.data(), DType::float64, 1, &m, nullptr, Device::cpu, 0, nullptr}, eps).zeros,
        want_double)
        << eps;
  }
  const std::int64_t big[] = {(1ll << 53) + 1, (1ll << 53),
                              std::numeric_limits<std::int64_t>::min(), -3, 0};
  const std::int64_t n = 5;
  const TensorView view{big, DType::int64, 1, &n, nullptr, Device::cpu, 0, nullptr};
  EXPECT_EQ(measure(view, 0x1p53).zeros, 2);
  EXPECT_EQ(measure(view, 0x1p53 + 2).zeros, 4);
  EXPECT_EQ(measure(view, 3.0).zeros, 1);
  EXPECT_EQ(measure(view, 3.5).zeros, 2);
  EXPECT_EQ(measure(view, 0x1p63).zeros, 4);
  EXPECT_EQ(measure(view, inf).zeros, 5);
}

#ifdef TRAINMON_HAS_ODD_FLOAT_MODE
TEST(Kernels, TheCallersFloatingPointModeIsNeitherUsedNorChanged) {
  const std::vector<float> x = {1e-40f, -1e-40f, 1e-45f};
  const std::int64_t n = 3;
  for (const CpuLevel level : levels()) {
    set_cpu_level(level);
    RowState got;
    {
      const test::OddFloatMode odd;
      const auto before = odd.read();
      got = measure({x.data(), DType::float32, 1, &n, nullptr, Device::cpu, 0, nullptr});
      EXPECT_EQ(odd.read(), before);
    }
    EXPECT_EQ(got.subnormals, 3);
    EXPECT_EQ(got.absmax, static_cast<double>(1e-40f));
    EXPECT_GT(got.sum_sq, 1e-80);
  }
  set_cpu_level(detected_cpu_level());
}
#endif

}  // namespace
}  // namespace trainmon
