// Heads of .npy files against the bytes that numpy.save wrote, and against bytes that nobody did.
#include "base/npy.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

namespace trainmon {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// What numpy.save of NumPy 2.4 writes before the data: magic, version, length, this dict and blanks
// up to 128 bytes.
std::string as_saved(std::string_view dict) {
  std::string head("\x93NUMPY\x01\x00v\x00", 10);
  head += dict;
  head.append(127 - head.size(), ' ');
  return head + '\n';
}

std::string fault_of(std::string_view text) {
  try {
    read_npy_head(bytes_of(text));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "none";
}

TEST(Npy, HeadIsWhatNumpyWrites) {
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(npy_head("|b1", Sizes{3}),
            as_saved("{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }"));
  EXPECT_EQ(npy_head("|b1", Sizes{}),
            as_saved("{'descr': '|b1', 'fortran_order': False, 'shape': (), }"));
  EXPECT_EQ(npy_head("|b1", Sizes{2, 0}),
            as_saved("{'descr': '|b1', 'fortran_order': False, 'shape': (2, 0), }"));
  EXPECT_EQ(npy_head("<f4", Sizes{2, 3}),
            as_saved("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"));
}

TEST(Npy, ReadsWhatNumpyWrote) {
  const NpyHead head = read_npy_head(
      bytes_of(as_saved("{'descr': '|b1', 'fortran_order': True, 'shape': (2, 3), }") +
               std::string(6, '\x01')));
  EXPECT_EQ(head.descr, "|b1");
  EXPECT_TRUE(head.fortran_order);
  EXPECT_EQ(head.sizes, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(head.data_offset, 128u);
}

TEST(Npy, ReadsVersionsTwoAndThree) {
  std::string text("\x93NUMPY\x02\x00t\x00\x00\x00", 12);
  text += "{'descr': '|b1', 'fortran_order': False, 'shape': (1,), }";
  text.append(127 - text.size(), ' ');
  text += "\n\x01";
  for (const char version : {'\x02', '\x03'}) {
    text[6] = version;
    const NpyHead head = read_npy_head(bytes_of(text));
    EXPECT_EQ(head.sizes, (std::vector<std::int64_t>{1}));
    EXPECT_EQ(head.data_offset, 128u);
  }
}

TEST(Npy, ReadsWhatItWrites) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 500; ++i) {
    std::vector<std::int64_t> sizes(random() % 20);
    for (std::int64_t& size : sizes) size = static_cast<std::int64_t>(random() % 9);
    if (i % 5 == 0) sizes = {static_cast<std::int64_t>(random() >> 1)};
    const std::string text = npy_head("|b1", sizes);
    const NpyHead head = read_npy_head(bytes_of(text));
    EXPECT_EQ(head.sizes, sizes);
    EXPECT_EQ(head.data_offset, text.size());
    EXPECT_EQ(text.size() % 64, 0u);
  }
}

TEST(Npy, SaysWhatIsWrong) {
  EXPECT_EQ(fault_of(""), "it is no .npy file");
  EXPECT_EQ(fault_of("PK\x03\x04"), "it is no .npy file");
  EXPECT_EQ(fault_of("\x93NUM"), "it is cut short in its head");
  EXPECT_EQ(fault_of(std::string_view("\x93NUMPY\x04\x00v\x00", 10)),
            "its .npy version 4.0 is not known");
  EXPECT_EQ(fault_of(as_saved("{'descr': '|b1', 'fortran_order': False, }")),
            "its head lacks a key");
  EXPECT_EQ(fault_of(as_saved("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}")),
            "its elements are records, not numbers");
  EXPECT_EQ(fault_of(as_saved("{'descr': '|b1', 'fortran_order': 1, 'shape': (1,)}")),
            "its head is damaged");
  EXPECT_EQ(fault_of(as_saved("{'descr': '|b1', 'fortran_order': False, 'shape': (-1,)}")),
            "its head is damaged");
  EXPECT_EQ(fault_of(as_saved("{'descr': '|b1', 'fortran_order': False, 'shape': (1,)} more")),
            "its head is damaged");
  EXPECT_EQ(
      fault_of(as_saved("{'descr': '|b1', 'fortran_order': False, 'shape': (1,), 'extra': 1}")),
      "the key 'extra' of its head is not expected");
  const std::string large = "{'descr': '|b1', 'fortran_order': False, 'shape': (4294967296, ";
  EXPECT_EQ(fault_of(as_saved(large + "4294967296)}")), "its sizes are too large");
  EXPECT_EQ(fault_of(as_saved(large + "0)}")), "none");
}

TEST(Npy, CutAnywhereOrChangedAnywhereItIsReadOrRefused) {
  const std::string whole = npy_head("|b1", std::vector<std::int64_t>{12, 7});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(fault_of(std::string_view(whole).substr(0, length)), "none") << length;
  }
  std::mt19937 random(4);
  for (int i = 0; i < 20000; ++i) {
    std::string text = whole;
    for (int change = 0; change < 3; ++change) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    if (fault_of(text) == "none") {
      EXPECT_LE(read_npy_head(bytes_of(text)).data_offset, text.size());
    }
  }
}

}  // namespace
}  // namespace trainmon
