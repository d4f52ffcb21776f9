// .sign files against bytes made by numpy.packbits and a checksum worked out bit by bit in Python.
#include "base/sign_file.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <string>

namespace trainmon {
namespace {

using Bytes = std::vector<std::byte>;

Bytes from_hex(std::string_view hex) {
  Bytes bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

std::string sign_fault_of(std::span<const std::byte> bytes) {
  try {
    read_sign_file(bytes);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "none";
}

// [[1, -2, 0, 3, nan], [-1, 5, -0, 7, -8]]: > 0 in one file, > 0 and < 0 in the other.
const Bytes kPositive =
    from_hex("544d5349474e00010100000002000000020000000000000005000000000000004901926cb801");
const Bytes kTernary =
    from_hex("544d5349474e000102000000020000000200000000000000050000000000000049012202f8598064");
const Bytes kEmpty =
    from_hex("544d5349474e00010100000002000000000000000000000003000000000000004c121a26");
const Bytes kScalar = from_hex("544d5349474e000101000000000000000101eb4ae0");
const std::vector<std::int64_t> kSizes = {2, 5};

TEST(SignFile, WritesTheseBytes) {
  EXPECT_EQ(sign_file(kSizes, 1, from_hex("4901")), kPositive);
  EXPECT_EQ(sign_file(kSizes, 2, from_hex("49012202")), kTernary);
  EXPECT_EQ(sign_file(std::vector<std::int64_t>{0, 3}, 1, {}), kEmpty);
  EXPECT_EQ(sign_file({}, 1, from_hex("01")), kScalar);
  EXPECT_THROW(sign_file(kSizes, 1, from_hex("490100")), std::invalid_argument);
  EXPECT_THROW(sign_file(kSizes, 3, from_hex("490122020000")), std::invalid_argument);
}

TEST(SignFile, ReadsTheseBytes) {
  const SignFile one = read_sign_file(kPositive);
  EXPECT_EQ(one.sizes, kSizes);
  EXPECT_EQ(one.count, 10);
  ASSERT_EQ(one.planes.size(), 1u);
  EXPECT_EQ(Bytes(one.planes[0].begin(), one.planes[0].end()), from_hex("4901"));
  const SignFile two = read_sign_file(kTernary);
  ASSERT_EQ(two.planes.size(), 2u);
  EXPECT_EQ(Bytes(two.planes[1].begin(), two.planes[1].end()), from_hex("2202"));
  EXPECT_EQ(read_sign_file(kEmpty).count, 0);
  EXPECT_EQ(read_sign_file(kScalar).count, 1);
}

TEST(SignFile, SaysWhatIsWrong) {
  EXPECT_EQ(sign_fault_of({}), "it is no .sign file");
  EXPECT_EQ(sign_fault_of(from_hex("934e554d5059")), "it is no .sign file");
  Bytes more = kPositive;
  more.push_back(std::byte{0});
  EXPECT_EQ(sign_fault_of(more), "it is longer than its sizes say");
  // Sizes far beyond the file, and beyond any.
  EXPECT_EQ(sign_fault_of(from_hex("544d5349474e0001010000000100000000000000000000100000000000")),
            "it is cut short");
  EXPECT_EQ(
      sign_fault_of(from_hex("544d5349474e00010100000002000000000000000000004000000000000000400000"
                             "000000")),
      "its head is damaged");
  EXPECT_EQ(sign_fault_of(from_hex("544d5349474e000103000000000000000101eb4ae0")),
            "its head is damaged");
}

TEST(SignFile, CutOrChangedAnywhereIsNoticed) {
  for (const Bytes& whole : {kPositive, kTernary, kEmpty, kScalar}) {
    for (std::size_t length = 0; length < whole.size(); ++length) {
      EXPECT_NE(sign_fault_of(std::span(whole).first(length)), "none") << length;
    }
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        Bytes changed = whole;
        changed[at] ^= static_cast<std::byte>(1 << bit);
        EXPECT_NE(sign_fault_of(changed), "none") << at;
      }
    }
  }
}

TEST(SignFile, AnyBytesAreReadOrRefused) {
  std::mt19937 random(5);
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes(random() % 64);
    for (std::byte& one : bytes) one = static_cast<std::byte>(random() % 4);
    std::copy_n(kPositive.begin(), std::min<std::size_t>(8, bytes.size()), bytes.begin());
    EXPECT_NE(sign_fault_of(bytes), "none");
  }
}

}  // namespace
}  // namespace trainmon
