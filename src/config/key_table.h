// The one table of configuration keys; parser, validator, schema and hints all read it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config_keys.h"
#include "trainmon/config.h"

namespace trainmon {

// Largest integer that every JSON reader keeps exactly.
inline constexpr std::int64_t kMaxInteger = std::int64_t{1} << 53;
inline constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

using Field =
    std::variant<bool Config::*, int Config::*, double Config::*, std::string Config::*,
                 std::optional<std::int64_t> Config::*, std::int64_t Config::*,
                 std::optional<double> Config::*, BackendChoice Config::*, Overflow Config::*,
                 std::vector<int> Config::*, std::vector<std::string> Config::*>;

enum class Text : std::uint8_t { path, choice, name_pattern };

// Where a person meets a key: in the file of `config init`, or when asking for all keys.
enum class Shown : std::uint8_t { at_first, on_request };

// What every key says. There is one constructor, so that a key that forgets something is an error
// of the compiler.
struct Basics {
  Basics(std::string_view name_, Field field_, Subject subject_, Follower follower_, Shown shown_,
         std::string_view example_, std::string_view meaning_)
      : name(name_),
        field(field_),
        subject(subject_),
        follower(follower_),
        shown(shown_),
        example(example_),
        meaning(meaning_) {}

  std::string_view name;
  Field field;
  Subject subject;
  Follower follower;
  Shown shown;
  std::string_view example;  // JSON; not the default
  std::string_view meaning;
};

struct Key : Basics {
  double minimum = 0.0;    // numbers, and the elements of lists of numbers; inclusive
  double maximum = 0.0;    // inclusive; kMaxInteger and kMaxInt are not mentioned to users
  Text text = Text::path;  // strings, and the elements of lists of strings
  std::span<const std::string_view> choices = {};  // enums: in the order of the enum's values
  bool may_be_empty = true;                        // lists
};

std::span<const Key> key_table();
const Key* find_key(std::string_view name);
// Whether the value of any key that this one follows is another.
bool differ(const Config& a, const Config& b, Follower follower);

// What a value of this key must be ("an integer of at least 1, or null"), and the same for one
// element of a list.
std::string expectation(const Key& key);
std::string element_expectation(const Key& key);
bool is_list(const Key& key);
// "; did you mean X?" for the choice nearest to `text`, else "".
std::string choice_hint(const Key& key, std::string_view text);

// A share of something: a number, or text of this form, which is per cent. The bounds of the key
// `budget` are in it, as in its numbers.
inline constexpr std::size_t kLongestPercent = 20;
inline constexpr std::string_view kPercentRegex =
    R"(^(?:50(?:\.0+)?|[1-4][0-9](?:\.[0-9]+)?|[1-9](?:\.[0-9]+)?|0\.(?:[1-9]|0[1-9])[0-9]*)%$)";

// Whether a name pattern is well formed: components between single dots, "**" only on its own.
bool pattern_ok(std::string_view pattern);
// The same rule for JSON Schema.
inline constexpr std::string_view kPatternRegex =
    R"(^(?:\*\*|\*|\*?[^.*]+(?:\*[^.*]+)*\*?)(?:\.(?:\*\*|\*|\*?[^.*]+(?:\*[^.*]+)*\*?))*$)";

}  // namespace trainmon
