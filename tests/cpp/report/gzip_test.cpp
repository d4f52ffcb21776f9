// The oracle is the program gzip, which checks the sum and the length, too.
#include "report/gzip.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

namespace trainmon::page {
namespace {

std::string unpacked(const std::string& packed) {
  const auto file = std::filesystem::path(testing::TempDir()) / "page.gz";
  std::ofstream(file, std::ios::binary) << packed;
  std::FILE* const pipe = ::popen(("gzip -dc '" + file.string() + "'").c_str(), "r");
  std::string out;
  std::array<char, 65536> part;
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), pipe)) {
    out.append(part.data(), count);
  }
  EXPECT_EQ(::pclose(pipe), 0);
  return out;
}

TEST(Gzip, GivesBackWhatWasPutIn) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  std::string runs;
  for (std::size_t length = 1; length < 600; ++length) {
    runs += std::string(length, static_cast<char>(length));
  }
  for (const std::string& text :
       {std::string(), std::string("a"), std::string(1, '\0'), all, runs, std::string(200'000, 'x'),
        std::string((1 << 16) - 1, 'y'), std::string(1 << 16, 'y'), std::string((1 << 16) + 1, 'y'),
        std::string(3, 'z'), std::string(4, 'z')}) {
    EXPECT_EQ(unpacked(gzipped(text)), text) << text.size();
  }
}

TEST(Gzip, CodesOfRareBytesAreNotTooLong) {
  // Fibonacci's numbers as counts make Huffman's codes as long as they can be.
  std::string text;
  std::size_t a = 1, b = 1;
  for (int i = 0; i < 22; ++i) {
    for (std::size_t j = 0; j < a; ++j) text += {static_cast<char>(i), '\xF0'};
    std::swap(a, b);
    b += a;
  }
  std::shuffle(text.begin(), text.end(), std::mt19937(1));
  EXPECT_EQ(unpacked(gzipped(text)), text);
}

TEST(Gzip, RandomBytesOfManySkews) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    std::geometric_distribution<int> bytes(0.01 * (1 + round * 2));
    std::string text;
    const int size = static_cast<int>(random() % 200'000);
    while (static_cast<int>(text.size()) < size) {
      text += std::string(random() % 9 == 0 ? random() % 400 : 1,
                          static_cast<char>(std::min(255, bytes(random))));
    }
    EXPECT_EQ(unpacked(gzipped(text)), text) << round;
  }
}

TEST(Gzip, IsSmall) {
  EXPECT_LT(gzipped(std::string(1 << 20, '\0')).size(), 8000U);
}

}  // namespace
}  // namespace trainmon::page
