// Entropies of ids against those of a counted histogram.
#include "stats/entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <vector>

namespace trainmon {
namespace {

template <typename Id>
TensorView view_of(const std::vector<Id>& ids, const std::int64_t& size, DType dtype) {
  return {.data = ids.data(), .dtype = dtype, .ndim = 1, .sizes = &size};
}

double counted(const std::vector<std::int64_t>& ids) {
  std::map<std::int64_t, double> counts;
  for (const std::int64_t id : ids) ++counts[id];
  double bits = 0.0;
  for (const auto& [id, count] : counts) {
    const double share = count / static_cast<double>(ids.size());
    bits -= share * std::log2(share);
  }
  return bits;
}

TEST(TokenEntropy, OfAHistogram) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 5000; ++i) ids.push_back(i * i % 977 - 100);
  const std::int64_t size = std::ssize(ids);
  EXPECT_NEAR(token_entropy(view_of(ids, size, DType::int64)).value(), counted(ids), 1e-12);
  const std::vector<std::int32_t> narrow(ids.begin(), ids.end());
  EXPECT_NEAR(token_entropy(view_of(narrow, size, DType::int32)).value(), counted(ids), 1e-12);
  const std::vector<std::int16_t> narrower(ids.begin(), ids.end());
  EXPECT_NEAR(token_entropy(view_of(narrower, size, DType::int16)).value(), counted(ids), 1e-12);
}

TEST(TokenEntropy, OfEqualAndOfDifferentIds) {
  const std::int64_t size = 8;
  const std::vector<std::int64_t> equal(8, -5), different = {7, 6, 5, 4, 3, 2, 1, 0};
  EXPECT_EQ(token_entropy(view_of(equal, size, DType::int64)).value(), 0.0);
  EXPECT_EQ(token_entropy(view_of(different, size, DType::int64)).value(), 3.0);
}

TEST(TokenEntropy, OfAViewWithStridesAndOfAnExpandedOne) {
  const std::vector<std::int32_t> ids = {1, 9, 2, 9, 1, 9, 2, 9};
  const std::int64_t size = 4, two = 2, zero = 0;
  EXPECT_EQ(
      token_entropy(
          {.data = ids.data(), .dtype = DType::int32, .ndim = 1, .sizes = &size, .strides = &two})
          .value(),
      1.0);
  EXPECT_EQ(
      token_entropy(
          {.data = ids.data(), .dtype = DType::int32, .ndim = 1, .sizes = &size, .strides = &zero})
          .value(),
      0.0);
}

TEST(TokenEntropy, OfNoIdsThereIsNone) {
  const std::int64_t size = 4, empty = 0;
  const std::vector<float> floats(4, 1.0f);
  const std::vector<std::int64_t> far = {0, 1, std::int64_t{1} << 40, 2};
  const std::vector<std::uint8_t> bytes = {0, 1, 2, 3};
  EXPECT_FALSE(token_entropy(view_of(floats, size, DType::float32)));
  EXPECT_FALSE(token_entropy(view_of(far, size, DType::int64)));
  EXPECT_FALSE(token_entropy(view_of(far, empty, DType::int64)));
  EXPECT_FALSE(token_entropy(view_of(bytes, size, DType::uint8)));
  TensorView on_device = view_of(far, size, DType::int64);
  on_device.device = Device::cuda;
  EXPECT_THROW(token_entropy(on_device), std::invalid_argument);
}

}  // namespace
}  // namespace trainmon
