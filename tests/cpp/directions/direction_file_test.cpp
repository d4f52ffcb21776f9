// Signs read as bits from either file, at any place, against bits counted one by one.
#include "directions/direction_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <stdexcept>

#include "base/npy.h"
#include "scratch.h"

namespace trainmon {
namespace {

void put(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A .npy and a .sign of the same truths. Bytes of the .npy are any that are not zero.
struct Both {
  explicit Both(const std::vector<bool>& truths) {
    const std::vector<std::int64_t> sizes = {static_cast<std::int64_t>(truths.size())};
    std::string npy = npy_head("|b1", sizes);
    std::vector<std::byte> bits((truths.size() + 7) / 8);
    for (std::size_t i = 0; i < truths.size(); ++i) {
      npy += static_cast<char>(truths[i] ? 1 + i % 255 : 0);
      if (truths[i]) bits[i / 8] |= static_cast<std::byte>(1 << (i % 8));
    }
    put(scratch.path() / "x.npy", npy);
    put(scratch.path() / "x.sign", text_of(sign_file(sizes, 1, bits)));
  }
  Scratch scratch;
};

TEST(DirectionFile, BitsAtAnyPlace) {
  std::mt19937 random(6);
  for (const std::size_t count : {0, 1, 7, 63, 64, 65, 1000, 65535, 65536, 65537, 200001}) {
    std::vector<bool> truths(count);
    for (std::size_t i = 0; i < count; ++i) truths[i] = random() % 3 == 0;
    const Both files(truths);
    for (const char* name : {"x.npy", "x.sign"}) {
      const DirectionFile file(files.scratch.path() / name);
      ASSERT_EQ(file.count(), static_cast<std::int64_t>(count));
      ASSERT_EQ(file.planes(), 1);
      for (const std::size_t words : {1u, 3u, 2000u}) {
        std::vector<std::uint64_t> bits(words, ~std::uint64_t{0});
        for (std::size_t first = 0; first < count + 64; first += 64 * words) {
          file.read(0, static_cast<std::int64_t>(first), bits);
          for (std::size_t i = 0; i < 64 * words; ++i) {
            const bool bit = (bits[i / 64] >> (i % 64) & 1) != 0;
            const bool expected = first + i < count && truths[first + i];
            ASSERT_EQ(bit, expected) << name << " " << count << " " << first + i;
          }
        }
      }
    }
  }
}

TEST(DirectionFile, ColumnsArePutInRows) {
  // Element [i][j][k] of 3 x 5 x 700 is true where its place in rows is a multiple of 3.
  constexpr std::int64_t kI = 3, kJ = 5, kK = 700;
  std::string data;
  for (std::int64_t k = 0; k < kK; ++k) {
    for (std::int64_t j = 0; j < kJ; ++j) {
      for (std::int64_t i = 0; i < kI; ++i) data += ((i * kJ + j) * kK + k) % 3 == 0 ? '\1' : '\0';
    }
  }
  std::string head = npy_head("|b1", std::vector<std::int64_t>{kI, kJ, kK});
  head.replace(head.find("False, "), 7, "True,  ");
  const Scratch scratch;
  put(scratch.path() / "x.npy", head + data);
  DirectionFile file(scratch.path() / "x.npy");
  ASSERT_TRUE(file.is_fortran());
  file.put_in_rows();
  std::vector<std::uint64_t> bits(200);
  file.read(0, 0, bits);
  for (std::int64_t i = 0; i < 64 * 200; ++i) {
    const bool bit = (bits[static_cast<std::size_t>(i / 64)] >> (i % 64) & 1) != 0;
    ASSERT_EQ(bit, i < kI * kJ * kK && i % 3 == 0) << i;
  }
}

TEST(DirectionFile, AnEmptyOneOfHugeSizes) {
  std::string head = npy_head("|b1", std::vector<std::int64_t>{0, 5000000, 70000000000000, 2});
  head.replace(head.find("False, "), 7, "True,  ");
  const Scratch scratch;
  put(scratch.path() / "x.npy", head);
  DirectionFile file(scratch.path() / "x.npy");
  ASSERT_TRUE(file.is_fortran());
  file.put_in_rows();
  EXPECT_EQ(file.count(), 0);
}

std::string fault_of(const std::filesystem::path& path) {
  try {
    const DirectionFile file(path);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "none";
}

TEST(DirectionFile, SaysWhatIsWrong) {
  const Scratch scratch;
  const std::filesystem::path npy = scratch.path() / "x.npy", sign = scratch.path() / "x.sign";
  const std::string head = npy_head("|b1", std::vector<std::int64_t>{4});
  put(npy, head + "\1\1\1\1");
  EXPECT_EQ(fault_of(npy), "none");
  put(npy, head + "\1\1\1");
  EXPECT_EQ(fault_of(npy), "it is cut short");
  put(npy, head + "\1\1\1\1\1");
  EXPECT_EQ(fault_of(npy), "it is longer than its sizes say");
  put(npy, npy_head("<f4", std::vector<std::int64_t>{1}) + "\1\1\1\1");
  EXPECT_EQ(fault_of(npy), "its elements are <f4, not bool");
  put(npy, "");
  EXPECT_EQ(fault_of(npy), "it is no .npy file");
  put(sign, head);
  EXPECT_EQ(fault_of(sign), "it is no .sign file");
  std::filesystem::remove(sign);
  EXPECT_NE(fault_of(sign).find("x.sign"), std::string::npos);
}

}  // namespace
}  // namespace trainmon
