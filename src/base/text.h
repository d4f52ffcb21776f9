// Text that is safe to write: exact numbers, JSON strings, terminal output, typo hints.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace trainmon {

// The shortest decimal text that reads back as exactly `value`; "nan", "inf", "-inf".
std::string number_text(double value);
// At most `significant` digits (1 to 17), trailing zeros dropped.
std::string number_text(double value, int significant);
// The same number as Python's repr() of a float and NumPy's str() of a float64 write it: "1.0",
// "1e-05", "0.0001".
std::string python_text(double value);
// 1234567 -> "1,234,567".
std::string grouped(std::int64_t value);
// 1536 -> "1.5 KiB".
std::string bytes_text(double bytes);

// The known name closest to `name` by edit distance (transpositions count one), nullopt when none
// is close enough to be a typo. Ties go to the first.
std::optional<std::string> nearest_name(std::string_view name,
                                        std::span<const std::string_view> known);

// `text` quoted and escaped for JSON; bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);
// An object of these names and JSON texts, in this order, and a list of JSON texts. Text alone:
// the destructor of a tree of nlohmann's asks for memory, and ends the process when there is none.
std::string json_object(std::span<const std::pair<std::string, std::string>> members);
std::string json_list(std::span<const std::string> values);
// A list of numbers as JSON: "[2,3]".
std::string list_text(std::span<const std::int64_t> numbers);

// `text` for a terminal or a log line. Control characters, escape codes, bidirectional overrides
// and bytes that are not UTF-8 are shown as \xNN or \u{NNNN}. Everything else is kept.
std::string printable(std::string_view text);

// One word for a shell to read back: as it is, or in quotes.
std::string shell_word(std::string_view text);

// Number of terminal cells `printable` text takes (wide East Asian characters count two).
std::size_t display_width(std::string_view text);

// Length in bytes of the valid UTF-8 character at text[at] and its code point; length 0 when the
// bytes there are not UTF-8.
struct Utf8Char {
  std::size_t length = 0;
  std::uint32_t code = 0;
};
Utf8Char decode_utf8(std::string_view text, std::size_t at);
bool is_utf8(std::string_view text);

}  // namespace trainmon
