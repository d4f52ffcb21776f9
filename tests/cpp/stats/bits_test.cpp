// The same bits on every machine: states and digests of fixed tensors against
// tests/data/stat_bits.txt, which x86-64 and 64-bit Arm must both reproduce at every level.
//
// The file was written by these kernels on x86-64 (TRAINMON_WRITE_STAT_BITS=1 writes it anew, after
// a change of the order of summation), so it says nothing about what is right: that is for the
// oracles of the other tests. Here, counts and extremes are compared with theirs once more.
#include <gtest/gtest.h>

#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "stats/cpu/level.h"
#include "stats/oracle.h"
#include "trainmon/probe.h"

namespace trainmon {
namespace {

enum class Content { gradient, any_bits, integers, tiny };
constexpr const char* kContents[] = {"gradient", "any_bits", "integers", "tiny"};

// Elements as bits, without any library function whose last bit could differ.
class Generator {
 public:
  std::uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  // Of the size of a gradient and its spread: sign, fraction, and one of 24 exponents; or of
  // integers below 1024; or at the lower end of float32.
  double value(Content content) {
    const std::uint64_t bits = next();
    const double sign = bits & 1 ? -1.0 : 1.0;
    const auto fraction = static_cast<double>(bits >> 40);  // 24 bits, exact in float32
    const auto exponent = static_cast<int>((bits >> 8) % 24);
    switch (content) {
      case Content::integers:
        return sign * static_cast<double>(bits >> 54);
      case Content::tiny:
        return sign * std::ldexp(fraction, -149 - 12 + exponent);
      default:
        return sign * std::ldexp(fraction, -32 - exponent);
    }
  }

 private:
  std::uint64_t state_ = 0x9E3779B97F4A7C15u;
};

struct Tensor {
  std::string name;
  DType dtype = DType::float32;
  std::vector<std::byte> bytes;
  std::vector<double> values;  // of float32 and float64, for the oracle
  std::int64_t size = 0;

  TensorView view() const {
    return {bytes.data(), dtype, 1, &size, nullptr, Device::cpu, 0, nullptr};
  }
};

template <class T>
void put(Tensor& tensor, std::size_t i, T value) {
  std::memcpy(tensor.bytes.data() + i * sizeof(T), &value, sizeof(T));
}

Tensor make(DType dtype, Content content, std::int64_t n) {
  Tensor tensor;
  tensor.name = std::string(dtype_name(dtype)) + "/" + kContents[static_cast<int>(content)] + "/" +
                std::to_string(n);
  tensor.dtype = dtype;
  tensor.size = n;
  const std::size_t width = dtype_size(dtype);
  tensor.bytes.resize(static_cast<std::size_t>(n) * width);
  Generator random;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const bool any = content == Content::any_bits;
    const std::uint64_t bits = any ? random.next() : 0;
    const double x = any ? 0.0 : random.value(content);
    if (dtype == DType::float64) {
      tensor.values.push_back(any ? std::bit_cast<double>(bits) : x);
      put(tensor, i, tensor.values.back());
    } else if (dtype == DType::float32) {
      const float f =
          any ? std::bit_cast<float>(static_cast<std::uint32_t>(bits)) : static_cast<float>(x);
      tensor.values.push_back(static_cast<double>(f));
      put(tensor, i, f);
    } else if (dtype == DType::bfloat16 && !any) {
      const auto f = std::bit_cast<std::uint32_t>(static_cast<float>(x));
      put(tensor, i, static_cast<std::uint16_t>(f >> 16));
    } else {
      const std::uint64_t raw = random.next();
      std::memcpy(tensor.bytes.data() + i * width, &raw, width);
      if (dtype == DType::bool8) tensor.bytes[i] &= std::byte{1};
    }
  }
  return tensor;
}

std::vector<Tensor> tensors() {
  std::vector<Tensor> all;
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
    for (const Content content :
         {Content::gradient, Content::any_bits, Content::integers, Content::tiny}) {
      for (const std::int64_t n : {1, 7, 33, 1000, 4097, 70001, 300007}) {
        all.push_back(make(dtype, content, n));
      }
    }
  }
  for (const DType dtype : {DType::float16, DType::float8_e4m3fn, DType::float8_e5m2, DType::int64,
                            DType::int32, DType::int16, DType::int8, DType::uint64, DType::uint32,
                            DType::uint16, DType::uint8, DType::bool8}) {
    for (const std::int64_t n : {1, 33, 4097, 300007}) {
      all.push_back(make(dtype, Content::any_bits, n));
    }
  }
  return all;
}

// One line of the file: the name, counts, the bits of the numbers, the exponent, three digests.
std::string line_of(const Tensor& tensor, int threads) {
  const RowState s = measure(tensor.view(), 1e-5, threads);
  std::string line = tensor.name;
  for (const std::int64_t count :
       {s.count, s.nans, s.pos_infs, s.neg_infs, s.zeros, s.subnormals}) {
    line += " " + std::to_string(count);
  }
  for (const double x : {s.sum, s.mean, s.m2, s.sum_sq, s.min, s.max, s.absmax}) {
    char bits[24];
    std::snprintf(bits, sizeof bits, " %016" PRIx64, std::bit_cast<std::uint64_t>(x));
    line += bits;
  }
  line += " " + std::to_string(s.exponent);
  for (const Digest digest : {Digest::fast64, Digest::crc32, Digest::md5}) {
    ProbeRequest request;
    request.digest = digest;
    line += " " + probe(tensor.view(), request, threads).digest;
  }
  return line;
}

TEST(StatBits, AreThoseOfTheFileAtEveryLevelAndNumberOfThreads) {
  const bool write = std::getenv("TRAINMON_WRITE_STAT_BITS") != nullptr;
  const std::vector<Tensor> all = tensors();
  if (write) {
    std::ofstream file(STAT_BITS);
    for (const Tensor& tensor : all) file << line_of(tensor, 1) << "\n";
    ASSERT_TRUE(file.flush()) << STAT_BITS;
  }
  std::map<std::string, std::string> wanted;
  std::ifstream file(STAT_BITS);
  for (std::string line; std::getline(file, line);) wanted[line.substr(0, line.find(' '))] = line;
  EXPECT_EQ(wanted.size(), all.size()) << STAT_BITS;
  for (const CpuLevel level : test::levels()) {
    set_cpu_level(level);
    for (const Tensor& tensor : all) {
      EXPECT_EQ(line_of(tensor, 1), wanted[tensor.name]) << cpu_level_name(level);
      if (tensor.size > 262144) {
        EXPECT_EQ(line_of(tensor, 3), wanted[tensor.name]) << cpu_level_name(level);
      }
    }
  }
  set_cpu_level(detected_cpu_level());
}

TEST(StatBits, CountsAndExtremesAreThoseOfTheOracle) {
  for (const Tensor& tensor : tensors()) {
    if (tensor.values.empty()) continue;
    const bool single = tensor.dtype == DType::float32;
    const test::Oracle want =
        test::oracle(tensor.values, 1e-5, single ? 0x1p-126 : std::numeric_limits<double>::min());
    const RowState got = measure(tensor.view(), 1e-5);
    EXPECT_EQ(got.count, want.count) << tensor.name;
    EXPECT_EQ(got.nans, want.nans) << tensor.name;
    EXPECT_EQ(got.pos_infs, want.pos_infs) << tensor.name;
    EXPECT_EQ(got.neg_infs, want.neg_infs) << tensor.name;
    EXPECT_EQ(got.zeros, want.zeros) << tensor.name;
    EXPECT_EQ(got.subnormals, want.subnormals) << tensor.name;
    EXPECT_EQ(got.min, want.min) << tensor.name;
    EXPECT_EQ(got.max, want.max) << tensor.name;
    if (tensor.name.find("integers") !=
        std::string::npos) {  // exact in float64, whatever the order
      EXPECT_EQ(got.sum, static_cast<double>(want.sum)) << tensor.name;
      EXPECT_EQ(std::ldexp(got.sum_sq, 2 * got.exponent), static_cast<double>(want.sum_sq))
          << tensor.name;
    }
  }
}

}  // namespace
}  // namespace trainmon
