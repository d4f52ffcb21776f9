// That every change of a bit shows in the fingerprint, and the constants that promise it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "stats/check.h"
#include "stats/check_oracle.h"
#include "stats/check_tensor.h"

namespace trainmon {
namespace {

using test::make;
using test::Tensor;

std::uint64_t fingerprint_of(const Tensor& tensor, std::int64_t first = 0) {
  Check check;
  measure(tensor.view(), first, check);
  return check.fingerprint;
}

TEST(Fingerprint, ConstantsKeepTheirPromises) {
  const test::FingerprintConstants constants;
  // Two flips in a block cancel only where the products of their factors are equal.
  std::set<std::int64_t> products;
  for (const std::int64_t column : constants.columns) {
    EXPECT_EQ(column % 2, 1);
    for (const auto* half : {&constants.lower, &constants.upper}) {
      for (const std::int64_t factor : *half) products.insert(column * factor);
    }
  }
  EXPECT_EQ(products.size(), 256u * 16);
  // No flips of one bit in the rows of a column cancel.
  for (const auto* half : {&constants.lower, &constants.upper}) {
    for (int code = 1; code < 6561; ++code) {
      std::int64_t sum = 0;
      int digits = code;
      for (const std::int64_t factor : *half) {
        sum += (digits % 3 - 1) * factor;
        digits /= 3;
      }
      EXPECT_TRUE(sum != 0 || code == 3280) << code;  // 3280: all digits are 1
    }
  }
}

TEST(Fingerprint, EverySingleFlipShows) {
  std::mt19937_64 random(12);
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::uint8}) {
    Tensor tensor = make(dtype, 3000, 0, random);
    const std::uint64_t before = fingerprint_of(tensor, 256);
    for (std::byte& byte : tensor.elements()) {
      const int bit = static_cast<int>(random() % 8);
      byte ^= std::byte{1} << bit;
      ASSERT_NE(fingerprint_of(tensor, 256), before);
      byte ^= std::byte{1} << bit;
    }
    ASSERT_EQ(fingerprint_of(tensor, 256), before);
  }
}

TEST(Fingerprint, PairsSwapsAndEqualFlipsShow) {
  std::mt19937_64 random(13);
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::uint8}) {
    const std::size_t item = dtype_size(dtype);
    Tensor tensor = make(dtype, 5000, 0, random);
    const std::uint64_t before = fingerprint_of(tensor);
    const auto elements = tensor.elements();
    const auto shows = [&](auto change) {
      const std::vector<std::byte> kept = tensor.bytes;
      change();
      const bool changed = tensor.bytes != kept;
      const bool seen = fingerprint_of(tensor) != before;
      tensor.bytes = kept;
      return seen == changed;
    };
    const auto flip = [&](std::size_t element, std::size_t bit) {
      elements[element * item + bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    };
    for (int round = 0; round < 3000; ++round) {
      const std::size_t a = random() % 5000;
      const std::size_t near = std::min<std::size_t>(a + 1 + random() % 200, 4999);
      const std::size_t b = round % 2 == 0 ? random() % 5000 : near;
      const std::size_t bit = random() % (8 * item);
      ASSERT_TRUE(shows([&] { flip(a, bit), flip(b, bit); }));
      ASSERT_TRUE(shows([&] { flip(a, 8 * item - 1), flip(b, 8 * item - 1); }));
      ASSERT_TRUE(shows([&] { flip(a, bit), flip(b, random() % (8 * item)); }));
      ASSERT_TRUE(shows([&] {
        std::swap_ranges(&elements[a * item], &elements[a * item] + item, &elements[b * item]);
      }));
      // A bit that sticks, in every 16th or 32nd element of a stretch.
      const std::size_t stride = round % 2 == 0 ? 16 : 32;
      const std::size_t count = 2 + random() % 15;
      ASSERT_TRUE(shows([&] {
        for (std::size_t i = 0; i < count && a + i * stride < 5000; ++i) flip(a + i * stride, bit);
      }));
    }
  }
}

TEST(Fingerprint, BitsCountNotNumbers) {
  Tensor tensor{std::vector<std::byte>(5000 * 4), 0, 5000, DType::float32};
  EXPECT_EQ(fingerprint_of(tensor), 0u);
  const auto with = [&](std::uint32_t bits) {
    std::memcpy(&tensor.bytes[400], &bits, sizeof bits);
    return fingerprint_of(tensor);
  };
  const std::set<std::uint64_t> all = {with(0), with(0x80000000), with(0x7fc00000),
                                       with(0x7fc00001), with(0xffc00000)};
  EXPECT_EQ(all.size(), 5u);
}

}  // namespace
}  // namespace trainmon
