// Number text is exact and shortest; hostile text is shown, not obeyed; typos find their word.
#include "base/text.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

namespace trainmon {
namespace {

TEST(Text, NumbersReadBackBitForBit) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    const std::string text = number_text(value);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(std::strtod(text.c_str(), nullptr)),
              std::bit_cast<std::uint64_t>(value))
        << text;
    EXPECT_LE(text.size(), 24u);
  }
}

TEST(Text, NumbersPeopleKnow) {
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(-0.0), "-0");
  EXPECT_EQ(number_text(1e22), "1e+22");
  EXPECT_EQ(number_text(5e-324), "5e-324");
  EXPECT_EQ(number_text(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(number_text(1.0 / 3.0, 4), "0.3333");
  EXPECT_EQ(number_text(1234567.0, 3), "1.23e+06");
  EXPECT_EQ(number_text(2.0, 6), "2");
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(100000), "100,000");
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(64.0 * 1024 * 1024), "64 MiB");
}

// The texts on the right are those of Python 3.11's repr().
TEST(Text, NumbersAsPythonWritesThem) {
  EXPECT_EQ(python_text(1.0), "1.0");
  EXPECT_EQ(python_text(-0.0), "-0.0");
  EXPECT_EQ(python_text(0.0001), "0.0001");
  EXPECT_EQ(python_text(0.00001), "1e-05");
  EXPECT_EQ(python_text(2.0 / 3.0), "0.6666666666666666");
  EXPECT_EQ(python_text(9999999999999998.0), "9999999999999998.0");
  EXPECT_EQ(python_text(1e16), "1e+16");
  EXPECT_EQ(python_text(1.5e300), "1.5e+300");
  EXPECT_EQ(python_text(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Text, NearestName) {
  const std::vector<std::string_view> known = {"norm", "min", "max", "mean", "zeros", "nans"};
  EXPECT_EQ(nearest_name("nomr", known), "norm");
  EXPECT_EQ(nearest_name("meen", known), "mean");
  EXPECT_EQ(nearest_name("zeroes", known), "zeros");
  EXPECT_EQ(nearest_name("weights", known), std::nullopt);
  EXPECT_EQ(nearest_name("", known), std::nullopt);
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), known), std::nullopt);
}

TEST(Text, PrintableShowsWhatATerminalWouldObey) {
  EXPECT_EQ(printable("layers.1.weight"), "layers.1.weight");
  EXPECT_EQ(printable("\x1b[31mred\n"), "\\x1b[31mred\\x0a");
  EXPECT_EQ(printable("a\xE2\x80\xAE"
                      "b"),
            "a\\u{202e}b");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\u{009b}31m");
  EXPECT_EQ(printable("\xFF\xC0\xAF"), "\\xff\\xc0\\xaf");
  EXPECT_EQ(printable("模型.权重"), "模型.权重");
  EXPECT_EQ(display_width("模型.w"), 6u);
}

TEST(Text, PrintableOfAnyBytesHasNoControlByte) {
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random() % 40, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    for (const char c : printable(bytes)) {
      EXPECT_GE(static_cast<unsigned char>(c), 0x20);
      EXPECT_NE(c, 0x7F);
    }
  }
}

TEST(Text, JsonString) {
  EXPECT_EQ(json_string("a\"b\\c\n\t\x01"), "\"a\\\"b\\\\c\\n\\t\\u0001\"");
  EXPECT_EQ(json_string("\xED\xA0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");  // surrogate
  EXPECT_EQ(json_string("é模"), "\"é模\"");
}

}  // namespace
}  // namespace trainmon
