// Types, ranges and choices of single values.
#include "config/check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <regex>
#include <set>
#include <type_traits>

#include "base/text.h"

namespace trainmon {
namespace {

using nlohmann::json;

std::string fault_text(const std::string& where, const json& value, const std::string& wanted) {
  return where + " = " + value_text(value) + ": must be " + wanted;
}

// 10.0 is an integer for JSON Schema and so for us.
bool is_number_in_range(const Key& key, const json& value, bool integral) {
  if (!value.is_number()) return false;
  // Exact where a double is not.
  if (integral && value.is_number_unsigned() && value.get<std::uint64_t>() > kMaxInteger) {
    return false;
  }
  if (integral && value.is_number_integer() && value.get<std::int64_t>() > kMaxInteger) {
    return false;
  }
  const double number = value.get<double>();
  if (integral && number != std::floor(number)) return false;
  return number >= key.minimum && number <= key.maximum;  // false for NaN
}

bool is_text_allowed(const Key& key, const json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  switch (key.text) {
    case Text::path:
      return text.find('\0') == std::string::npos;
    case Text::name_pattern:
      return pattern_ok(text);
    case Text::choice:
      break;
  }
  return std::find(key.choices.begin(), key.choices.end(), text) != key.choices.end();
}

bool is_percent(const json& value) {
  static const std::regex form{std::string(kPercentRegex)};
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return text.size() <= kLongestPercent && std::regex_match(text, form);
}

// Not of the locale, as std::stod would be.
double percent_of(const std::string& text) {
  double number = 0.0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number / 100.0;
}

std::string hint(const Key& key, const json& value) {
  if (key.text != Text::choice || !value.is_string()) return "";
  return choice_hint(key, value.get_ref<const std::string&>());
}

bool is_field_value(const Key& key, const json& value) {
  return std::visit(
      [&]<typename T>(T Config::*) {
        if constexpr (std::is_same_v<T, bool>) {
          return value.is_boolean();
        } else if constexpr (std::is_same_v<T, double>) {
          return is_number_in_range(key, value, false);
        } else if constexpr (std::is_integral_v<T>) {
          return is_number_in_range(key, value, true);
        } else if constexpr (std::is_same_v<T, std::optional<std::int64_t>>) {
          return value.is_null() || is_number_in_range(key, value, true);
        } else if constexpr (std::is_same_v<T, std::optional<double>>) {
          return value.is_null() || is_percent(value) || is_number_in_range(key, value, false);
        } else {
          return is_text_allowed(key, value);
        }
      },
      key.field);
}

void check_list(const Key& key, const json& list, std::vector<std::string>& faults) {
  const bool numbers = std::holds_alternative<std::vector<int> Config::*>(key.field);
  std::set<json> seen;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json& value = list[i];
    const std::string where = std::string(key.name) + "[" + std::to_string(i) + "]";
    const bool ok = numbers ? is_number_in_range(key, value, true) : is_text_allowed(key, value);
    if (!ok) {
      faults.push_back(fault_text(where, value, element_expectation(key)) + hint(key, value));
    } else if (!seen.insert(value).second) {
      faults.push_back(where + " = " + value_text(value) + ": appears twice in the list");
    }
  }
}

}  // namespace

std::string value_text(const json& value) {
  constexpr std::size_t kLongest = 80;
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
  }
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kLongest) {
    std::size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    text = text.substr(0, end) + "...";
  }
  return printable(text);
}

bool check_value(const Key& key, const json& value, std::vector<std::string>& faults) {
  const std::size_t before = faults.size();
  if (is_list(key)) {
    if (!value.is_array() || (value.empty() && !key.may_be_empty)) {
      faults.push_back(fault_text(std::string(key.name), value, expectation(key)));
    } else {
      check_list(key, value, faults);
    }
  } else if (!is_field_value(key, value)) {
    faults.push_back(fault_text(std::string(key.name), value, expectation(key)) + hint(key, value));
  }
  return faults.size() == before;
}

void check_together(const Config& config, std::vector<std::string>& faults) {
  if (config.stop_step && *config.stop_step <= config.start_step) {
    faults.push_back("stop_step = " + std::to_string(*config.stop_step) +
                     ": must be greater than start_step (" + std::to_string(config.start_step) +
                     "), or null");
  }
  if (config.retention_mb > 0.0 && config.retention_mb < 2.0 * config.segment_mb) {
    faults.push_back("retention_mb = " + number_text(config.retention_mb) +
                     ": must be at least twice segment_mb (" + number_text(config.segment_mb) +
                     "), for whole log files are deleted, or 0");
  }
}

void set_field(Config& config, const Key& key, const json& value) {
  std::visit(
      [&]<typename T>(T Config::*member) {
        if constexpr (std::is_enum_v<T>) {
          const auto& text = value.get_ref<const std::string&>();
          const auto position = std::find(key.choices.begin(), key.choices.end(), text);
          config.*member = static_cast<T>(position - key.choices.begin());
        } else if constexpr (std::is_same_v<T, std::optional<std::int64_t>>) {
          config.*member =
              value.is_null() ? std::nullopt : std::optional(value.get<std::int64_t>());
        } else if constexpr (std::is_same_v<T, std::optional<double>>) {
          if (value.is_null()) {
            config.*member = std::nullopt;
          } else if (value.is_string()) {
            config.*member = percent_of(value.get_ref<const std::string&>());
          } else {
            config.*member = value.get<double>();
          }
        } else {
          config.*member = value.get<T>();
        }
      },
      key.field);
}

json field_value(const Config& config, const Key& key) {
  return std::visit(
      [&]<typename T>(T Config::*member) -> json {
        const T& value = config.*member;
        if constexpr (std::is_enum_v<T>) {
          const auto index = static_cast<std::size_t>(value);
          return index < key.choices.size() ? json(key.choices[index]) : json(index);
        } else if constexpr (std::is_same_v<T, std::optional<std::int64_t>> ||
                             std::is_same_v<T, std::optional<double>>) {
          return value ? json(*value) : json(nullptr);
        } else {
          return value;
        }
      },
      key.field);
}

}  // namespace trainmon
