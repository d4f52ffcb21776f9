// The check value of the catalogue of CRCs, division bit by bit, pieces and joins.
#include "base/crc32.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace trainmon {
namespace {

// Straight from the definition: one bit at a time.
std::uint32_t by_bits(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

std::string random_bytes(std::size_t n) {
  std::mt19937 random(5);
  std::string bytes(n, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

TEST(Crc32, GivesTheCheckValue) {
  EXPECT_EQ(crc32("123456789"), 0xCBF43926u);
  EXPECT_EQ(crc32(""), 0u);
}

TEST(Crc32, EveryLengthAndAlignment) {
  const std::string bytes = random_bytes(1500);
  for (std::size_t n = 0; n < 1400; n += n < 300 ? 1 : 37) {
    const std::string_view piece = std::string_view(bytes).substr(n % 17, n);
    ASSERT_EQ(crc32(piece), by_bits(piece)) << n;
    ASSERT_EQ(crc32_table(piece), by_bits(piece)) << n;
  }
}

TEST(Crc32, ContinuesAndJoins) {
  const std::string bytes = random_bytes(3000);
  const std::string_view all = bytes;
  for (std::size_t cut = 0; cut <= all.size(); cut += 61) {
    const std::string_view first = all.substr(0, cut), second = all.substr(cut);
    EXPECT_EQ(crc32(second, crc32(first)), by_bits(all));
    EXPECT_EQ(crc32_join(crc32(first), crc32(second), second.size()), by_bits(all));
  }
}

}  // namespace
}  // namespace trainmon
