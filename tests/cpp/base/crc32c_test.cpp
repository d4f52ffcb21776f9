// CRC-32C against the published vectors (RFC 3720 B.4) and a bit-by-bit division.
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace trainmon {
namespace {

std::uint32_t by_division(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool in = ((static_cast<unsigned char>(c) >> bit) & 1) != 0;
      const bool out = (crc & 1) != 0;
      crc >>= 1;
      if (in != out) crc ^= 0x82F63B78u;
    }
  }
  return ~crc;
}

TEST(Crc32c, PublishedVectors) {
  std::string ascending, descending;
  for (int i = 0; i < 32; ++i) {
    ascending += static_cast<char>(i);
    descending += static_cast<char>(31 - i);
  }
  for (const auto crc : {&crc32c, &crc32c_table}) {
    EXPECT_EQ(crc("", 0), 0u);
    EXPECT_EQ(crc("123456789", 0), 0xE3069283u);
    EXPECT_EQ(crc(std::string(32, '\0'), 0), 0x8A9136AAu);
    EXPECT_EQ(crc(std::string(32, '\xFF'), 0), 0x62A8AB43u);
    EXPECT_EQ(crc(ascending, 0), 0x46DD794Eu);
    EXPECT_EQ(crc(descending, 0), 0x113FDB5Cu);
  }
}

TEST(Crc32c, RandomBytesOfEveryLengthAndSplit) {
  std::mt19937 random(7);
  for (std::size_t length = 0; length < 200; ++length) {
    std::string bytes(length + 3, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    const std::string_view odd = std::string_view(bytes).substr(3);  // not aligned
    const std::uint32_t expected = by_division(odd);
    EXPECT_EQ(crc32c(odd), expected);
    EXPECT_EQ(crc32c_table(odd), expected);
    const std::size_t split = random() % (length + 1);
    EXPECT_EQ(crc32c(odd.substr(split), crc32c(odd.substr(0, split))), expected);
  }
}

}  // namespace
}  // namespace trainmon
