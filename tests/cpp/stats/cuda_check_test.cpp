// Fingerprint and sketch as the CUDA kernel takes them, run on the host, against their definition:
// every type, length, place in a full tensor, alignment and layout.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "stats/check.h"
#include "stats/check_oracle.h"
#include "stats/check_tensor.h"
#include "stats/cpu/gather.h"
#include "stats/cuda/launch_table.h"
#include "stats/host_kernel.h"

namespace trainmon::cuda {
namespace {

constexpr DType kTypes[] = {
    DType::float64,     DType::float32, DType::float16, DType::bfloat16, DType::float8_e4m3fn,
    DType::float8_e5m2, DType::int64,   DType::int32,   DType::int16,    DType::int8,
    DType::uint64,      DType::uint32,  DType::uint16,  DType::uint8,    DType::bool8,
};

class CudaCheck : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, CudaCheck, testing::ValuesIn(kTypes),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

// What a launch with checks takes of a tensor.
CheckSums taken_of(const TensorView& view, std::int64_t first) {
  Pieces pieces;
  EXPECT_EQ(describe(view, pieces), nullptr);
  const std::int32_t place = add_check(view, first, pieces);
  EXPECT_NE(place, kNoCheck);
  const Entry& entry = place == kWithState ? pieces.entries[0] : pieces.apart[0];
  if (entry.elements == 0) return {};
  const Gaps* gaps = entry.strides < 0 ? nullptr : &pieces.gaps[std::size_t(entry.strides)];
  return host::check_of_tensor(entry, gaps, first);
}

// The recorded sums of the definition, and what rounding explains.
void expect_check(const CheckSums& got, std::span<std::byte> bytes, DType dtype, std::int64_t n,
                  std::int64_t first) {
  const auto at = static_cast<std::uint64_t>(first);
  EXPECT_EQ(got.fingerprint, test::fingerprint(bytes, at * dtype_size(dtype)));
  std::vector<double> values(static_cast<std::size_t>(n));
  if (n > 0) cpu::widen(dtype, bytes.data(), n, values.data());
  const test::SketchOracle want = test::sketch(values, at);
  for (std::size_t i = 0; i < 8; ++i) {
    const long double other = want.sum[i + 8];
    const long double sum = want.sum[i] + (i % 2 == 0 ? other : -other);
    const long double size = want.magnitude[i] + want.magnitude[i + 8];
    EXPECT_LE(std::fabs(static_cast<long double>(got.sketch[i]) - sum), 1e-14L * size) << i;
  }
}

void expect_definition(DType dtype, std::int64_t n, std::int64_t first, std::size_t offset,
                       std::mt19937_64& random) {
  SCOPED_TRACE(std::to_string(n) + " from " + std::to_string(first));
  test::Tensor tensor = test::make(dtype, n, offset, random);
  expect_check(taken_of(tensor.view(), first), tensor.elements(), dtype, n, first);
}

TEST_P(CudaCheck, AgreesWithTheDefinition) {
  std::mt19937_64 random(21);
  const auto item = static_cast<std::int64_t>(dtype_size(GetParam()));
  for (std::int64_t n = 0; n <= 600 && !HasFailure(); n += n < 40 ? 1 : 37) {
    const std::int64_t first = n % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 100000);
    const auto offset = static_cast<std::size_t>(n % 5 * item);
    expect_definition(GetParam(), n, first, offset, random);
  }
  // Several chunks, at places where vectors may and may not be taken with the state.
  const std::int64_t each = kChunkBytes / item;
  for (const std::int64_t n : {each - 1, each, 2 * each + 7}) {
    for (const std::int64_t first : {0, 1, 16, 100, 4096 - 16, 256 * 12345}) {
      if (HasFailure()) return;
      expect_definition(GetParam(), n, first, 0, random);
    }
  }
}

TEST_P(CudaCheck, OfAnyBitsTheFingerprintIsThatOfTheHost) {
  std::mt19937_64 random(22);
  for (const std::int64_t n : {1L, 100L, 4096L, 70'000L}) {
    for (const std::int64_t first : {0, 256, 1001}) {
      test::Tensor tensor = test::make(GetParam(), n, 0, random, false);
      Check check;
      measure(tensor.view(), first, check);
      EXPECT_EQ(taken_of(tensor.view(), first).fingerprint, check.fingerprint);
    }
  }
}

TEST_P(CudaCheck, ShardsAddUpToTheWhole) {
  std::mt19937_64 random(23);
  test::Tensor whole = test::make(GetParam(), 50'000, 0, random);
  const CheckSums all = taken_of(whole.view(), 0);
  for (const std::int64_t cut : {1, 16, 8192, 33'333}) {
    const std::int64_t rest = whole.size - cut;
    CheckSums sum = taken_of(whole.part(0, cut), 0);
    cuda::add(sum, taken_of(whole.part(cut, rest), cut));
    EXPECT_EQ(sum.fingerprint, all.fingerprint) << cut;
  }
}

// Copies the elements of a view in C order.
std::vector<std::byte> in_order(const TensorView& view) {
  const std::size_t item = dtype_size(view.dtype);
  std::vector<std::byte> copy;
  std::vector<std::int64_t> index(static_cast<std::size_t>(view.ndim));
  for (std::int64_t left = element_count(view); left > 0; --left) {
    const std::int64_t at =
        std::inner_product(index.begin(), index.end(), view.strides, std::int64_t{0});
    const auto* p = static_cast<const std::byte*>(view.data) + at * std::int64_t(item);
    copy.insert(copy.end(), p, p + item);
    for (std::size_t d = index.size(); d-- > 0 && ++index[d] == view.sizes[d];) index[d] = 0;
  }
  return copy;
}

TEST_P(CudaCheck, LayoutsAreReadInTheOrderOfTheirElements) {
  std::mt19937_64 random(24);
  test::Tensor tensor = test::make(GetParam(), 4000, 0, random);
  struct Case {
    std::int64_t sizes[3];
    std::int64_t strides[3];
    std::int64_t begin;
  };
  for (const Case& one : {Case{{10, 20, 20}, {400, 20, 1}, 0},  // C order
                          Case{{10, 20, 20}, {1, 10, 200}, 0},  // another order of memory
                          Case{{10, 20, 20}, {1, 200, 10}, 0},  // channels last
                          Case{{10, 20, 10}, {400, 20, 2}, 0},  // gaps
                          Case{{7, 13, 50}, {0, 50, 1}, 3},     // expanded
                          Case{{7, 13, 50}, {50, 0, 1}, 0},     // expanded within
                          Case{{10, 20, 20}, {-400, 20, -1}, 3619}, Case{{1, 1, 1}, {5, 5, 5}, 9},
                          Case{{0, 3, 4}, {12, 4, 1}, 0}}) {
    SCOPED_TRACE(one.strides[0]);
    TensorView view = tensor.view();
    view.data =
        static_cast<const std::byte*>(view.data) + one.begin * std::int64_t(dtype_size(GetParam()));
    view.ndim = 3;
    view.sizes = one.sizes;
    view.strides = one.strides;
    std::vector<std::byte> bytes = in_order(view);
    for (const std::int64_t first : {0, 64, 77}) {
      expect_check(taken_of(view, first), bytes, GetParam(), element_count(view), first);
    }
  }
}

TEST(CudaChecks, OneValueThatIsNotFiniteChangesOneSum) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(5000, 0.5f);
    values[1237] = bad;
    const std::int64_t size = 5000;
    const CheckSums got = taken_of({.data = values.data(), .ndim = 1, .sizes = &size}, 0);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(std::isfinite(got.sketch[i]), i != 1237 % 8);
  }
}

TEST(CudaChecks, MoreDimensionsThanTheKernelKnowsGiveNone) {
  std::vector<float> values(1 << 10);
  std::vector<std::int64_t> sizes(10, 2), strides;
  for (int d = 0; d < 10; ++d) strides.push_back(std::int64_t{1} << d);  // dense, turned round
  Pieces pieces;
  const TensorView view{
      .data = values.data(), .ndim = 10, .sizes = sizes.data(), .strides = strides.data()};
  EXPECT_EQ(describe(view, pieces), nullptr);
  EXPECT_EQ(add_check(view, 0, pieces), kNoCheck);
  join_checks(pieces);
  ASSERT_EQ(pieces.checks.size(), 1u);
  EXPECT_EQ(pieces.checks[0].taken, Taken::state);
}

}  // namespace
}  // namespace trainmon::cuda
