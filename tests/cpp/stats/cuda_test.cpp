// The arithmetic of the CUDA kernel, run on the host with the device's order of summation, against
// sums in long double.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "stats/cuda/careful.h"
#include "stats/cuda/device.h"
#include "stats/cuda/image.h"
#include "stats/cuda/measure_cuda.h"
#include "stats/cuda/sums.h"
#include "stats/host_kernel.h"

namespace trainmon::cuda {
namespace {

constexpr double kEps = 1e-8;

RowState careful(const Chunk& chunk) {
  return host::careful(chunk, kEps);
}

template <class Format>
RowState state_of_tensor(DType dtype, const void* data, std::int64_t n) {
  const std::int64_t each = kChunkBytes / item_bytes(dtype);
  RowState state;
  for (std::int64_t begin = 0; begin < n; begin += each) {
    const Chunk chunk{static_cast<const std::byte*>(data), nullptr, dtype, begin,
                      std::min(each, n - begin)};
    merge_states(state, host::state_of_chunk<Format>(chunk, kEps));
  }
  return state;
}

template <class Value>
void expect_state(const std::vector<Value>& values, double smallest_normal, const RowState& got) {
  long double sum = 0, sum_sq = 0, size = 0;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  std::int64_t zeros = 0, subnormals = 0, nans = 0, up = 0, down = 0;
  for (const Value value : values) {
    const auto x = static_cast<double>(value);
    if (std::isnan(x)) {
      ++nans;
      continue;
    }
    if (std::isinf(x)) {
      ++(x > 0 ? up : down);
      continue;
    }
    sum += x;
    sum_sq += static_cast<long double>(x) * x;
    size += std::fabs(x);
    low = std::min(low, x);
    high = std::max(high, x);
    zeros += std::fabs(x) < kEps;
    subnormals += x != 0.0 && std::fabs(x) < smallest_normal;
  }
  EXPECT_EQ(got.count, static_cast<std::int64_t>(values.size()));
  EXPECT_EQ(got.nans, nans);
  EXPECT_EQ(got.pos_infs, up);
  EXPECT_EQ(got.neg_infs, down);
  EXPECT_EQ(got.zeros, zeros);
  EXPECT_EQ(got.subnormals, subnormals);
  const auto n = static_cast<long double>(got.finite());
  if (n == 0) return;
  EXPECT_EQ(got.min, low);
  EXPECT_EQ(got.max, high);
  EXPECT_LE(std::fabs(static_cast<long double>(got.sum) - sum), 1e-15L * size);
  EXPECT_LE(std::fabs(std::ldexp(static_cast<long double>(got.sum_sq), 2 * got.exponent) - sum_sq),
            1e-14L * sum_sq);
  long double moment = 0;
  for (const Value value : values) {
    const auto x = static_cast<long double>(value);
    if (std::isfinite(x)) moment += (x - sum / n) * (x - sum / n);
  }
  EXPECT_LE(std::fabs(std::ldexp(static_cast<long double>(got.m2), 2 * got.exponent) - moment),
            1e-9L * moment + 1e-20L * sum_sq);
}

std::vector<float> normal_floats(std::int64_t n, double scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = static_cast<float>(normal(random) * scale);
  return values;
}

TEST(CudaSums, FloatsOfManyLengths) {
  const std::int64_t each = kChunkBytes / 4;
  for (const std::int64_t n :
       {1L, 3L, 4L, 255L, 1023L, 1024L, 1025L, each - 1, each, each + 1, 3 * each + 7}) {
    std::vector<float> values = normal_floats(n, 1e-3, static_cast<unsigned>(n));
    if (n > 100) values[50] = 0.0f, values[60] = 1e-40f, values[70] = -1e-9f;
    expect_state(values, 0x1p-126, state_of_tensor<Float32>(DType::float32, values.data(), n));
  }
}

TEST(CudaSums, NotFinite) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    std::vector<float> values = normal_floats(5000, 1.0, 3);
    values[0] = values[4999] = bad;
    values[17] = 1e-41f;
    expect_state(values, 0x1p-126, state_of_tensor<Float32>(DType::float32, values.data(), 5000));
  }
}

TEST(CudaSums, MeanFarFromZero) {
  std::vector<float> values = normal_floats(100'000, 1e-4, 5);
  for (float& value : values) value += 3.0f;
  expect_state(values, 0x1p-126, state_of_tensor<Float32>(DType::float32, values.data(), 100'000));
}

TEST(CudaSums, DoublesOfAnyScale) {
  for (const double scale : {1e-300, 1e-170, 1.0, 1e160, 1e300}) {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    std::vector<double> values(20'000);
    for (double& value : values) value = normal(random) * scale;
    expect_state(values, 0x1p-1022,
                 state_of_tensor<Float64>(DType::float64, values.data(), 20'000));
  }
}

// Every number of the sixteen- and eight-bit formats at once, and what they are decoded to.
TEST(CudaSums, EveryBfloat16) {
  std::vector<std::uint16_t> bits(65536);
  std::vector<float> values(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    bits[i] = static_cast<std::uint16_t>(i);
    values[i] = std::bit_cast<float>(i << 16);
  }
  expect_state(values, 0x1p-126, state_of_tensor<Bfloat16>(DType::bfloat16, bits.data(), 65536));
}

// By the definition of the formats: sign, exponent, mantissa.
float decoded(std::uint32_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int top = (1 << exponent_bits) - 1;
  const int mantissa = static_cast<int>(bits & ((1u << mantissa_bits) - 1));
  const int exponent = static_cast<int>(bits >> mantissa_bits) & top;
  const float sign = (bits >> (exponent_bits + mantissa_bits)) != 0 ? -1.0f : 1.0f;
  if (exponent == top && has_infinity) return mantissa == 0 ? sign * INFINITY : std::nanf("");
  if (exponent == top && mantissa == (1 << mantissa_bits) - 1) return std::nanf("");
  if (exponent == 0)
    return sign * std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits);
  return sign * std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)),
                           exponent - bias - mantissa_bits);
}

TEST(CudaSums, EveryFloat16AndFloat8) {
  std::vector<std::uint16_t> bits(65536);
  std::vector<float> values(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    bits[i] = static_cast<std::uint16_t>(i);
    values[i] = decoded(i, 5, 10, true);
  }
  expect_state(values, 0x1p-14, state_of_tensor<Float16>(DType::float16, bits.data(), 65536));

  std::vector<std::uint8_t> bytes(256);
  std::vector<float> small(256);
  for (std::uint32_t i = 0; i < 256; ++i) {
    bytes[i] = static_cast<std::uint8_t>(i);
    small[i] = decoded(i, 5, 2, true);
  }
  expect_state(small, 0x1p-14, state_of_tensor<Float8E5m2>(DType::float8_e5m2, bytes.data(), 256));
  for (std::uint32_t i = 0; i < 256; ++i) small[i] = decoded(i, 4, 3, false);
  expect_state(small, 0x1p-6,
               state_of_tensor<Float8E4m3fn>(DType::float8_e4m3fn, bytes.data(), 256));
}

template <class Integer>
void check_integers(DType dtype) {
  std::mt19937_64 random(11);
  std::vector<Integer> values(3000);
  for (Integer& value : values) value = static_cast<Integer>(random());
  values[0] = 0;
  values[1] = std::numeric_limits<Integer>::max();
  values[2] = std::numeric_limits<Integer>::min();
  const Chunk chunk{reinterpret_cast<const std::byte*>(values.data()), nullptr, dtype, 0, 3000};
  const RowState got = careful(chunk);
  EXPECT_EQ(got.zeros, std::ranges::count(values, Integer{0}));
  EXPECT_EQ(got.subnormals, 0);
  EXPECT_EQ(got.min, static_cast<double>(std::ranges::min(values)));
  EXPECT_EQ(got.max, static_cast<double>(std::ranges::max(values)));
}

TEST(CudaSums, Integers) {
  check_integers<std::int64_t>(DType::int64);
  check_integers<std::int32_t>(DType::int32);
  check_integers<std::int16_t>(DType::int16);
  check_integers<std::int8_t>(DType::int8);
  check_integers<std::uint64_t>(DType::uint64);
  check_integers<std::uint32_t>(DType::uint32);
  check_integers<std::uint16_t>(DType::uint16);
  check_integers<std::uint8_t>(DType::uint8);
}

TEST(CudaSums, LayoutsWithGaps) {
  const std::vector<float> values = normal_floats(24 * 20, 1.0, 13);
  const Gaps gaps{2, {5, 6}, {3, 40}};
  const Chunk chunk{reinterpret_cast<const std::byte*>(values.data()), &gaps, DType::float32, 0,
                    30};
  std::vector<float> picked;
  for (std::size_t row = 0; row < 6; ++row) {
    for (std::size_t column = 0; column < 5; ++column)
      picked.push_back(values[row * 40 + column * 3]);
  }
  expect_state(picked, 0x1p-126, careful(chunk));
}

TEST(Cuda, SaysWhyItIsNotThere) {
  const std::string why = cuda_unavailable(0);
  const std::string other = cuda_unavailable(1000);
  EXPECT_FALSE(other.empty());
  if (image().empty()) {
    EXPECT_NE(why.find("nvcc"), std::string::npos) << why;
  }
  const float x = 1.0f;
  RowState state;
  const TensorView on_cpu{.data = &x};
  EXPECT_THROW(measure_cuda({&on_cpu, 1}, {&state, 1}), std::invalid_argument);
  if (!why.empty()) {
    const TensorView on_device{.data = &x, .device = Device::cuda};
    EXPECT_THROW(measure_cuda({&on_device, 1}, {&state, 1}), std::runtime_error);
  }
}

}  // namespace
}  // namespace trainmon::cuda
