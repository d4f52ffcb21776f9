// JSON text to Config, with every fault reported at once.
#include <algorithm>
#include <set>

#include "base/text.h"
#include "config/check.h"

namespace trainmon {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxDepth = 32;
constexpr std::string_view kSchemaKey = "$schema";  // how an editor learns which schema applies

std::string line_and_column(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::string_view in_line =
      newline == std::string_view::npos ? before : before.substr(newline + 1);
  const auto column = 1 + std::count_if(in_line.begin(), in_line.end(), [](char byte) {
                        return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
                      });
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

// A first pass over the text, for what a parsed document cannot show any more. That is where the
// syntax is wrong, keys written twice, and nesting, which is stopped before anything is built.
class Scan final : public nlohmann::json_sax<json> {
 public:
  explicit Scan(std::string_view text) : text_(text) {}
  std::vector<std::string> duplicates;
  std::string fatal;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) {
      duplicates.push_back("key " + value_text(name) + " appears twice; write it once");
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.x.1] parse error at line 1, column 2: why": the place is told our way.
    std::string why = printable(error.what());
    why.erase(0, std::min(why.size(), why.find("] ") + 2));
    if (why.starts_with("parse error at ")) why.erase(0, why.find(": ") + 2);
    fatal = line_and_column(text_, position > 0 ? position - 1 : 0) + ": " + why;
    return false;
  }

 private:
  bool enter() {
    keys_.emplace_back();
    if (keys_.size() <= kMaxDepth) return true;
    fatal = "nested deeper than " + std::to_string(kMaxDepth) + " levels";
    return false;
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }

  std::string_view text_;
  std::vector<std::set<std::string>> keys_;  // per open object or array
};

}  // namespace

std::string unknown_key(const std::string& name, const json& value,
                        std::span<const std::string_view> known) {
  std::string fault = value_text(name) + " = " + value_text(value) + ": unknown key";
  if (const std::optional<std::string> near = nearest_name(name, known)) {
    return fault + "; did you mean \"" + *near + "\"?";
  }
  fault += "; known keys:";
  for (std::string_view key : known) fault += " " + std::string(key);
  return fault;
}

json read_object(std::string_view text, std::string_view what, std::vector<std::string>& faults) {
  if (text.size() > kMaxBytes) {
    throw ConfigError({"the text has " + std::to_string(text.size()) + " bytes; at most " +
                       std::to_string(kMaxBytes) + " are read"});
  }
  Scan scan(text);
  json::sax_parse(text.begin(), text.end(), &scan);
  if (!scan.fatal.empty()) throw ConfigError({scan.fatal});
  json document = json::parse(text.begin(), text.end());
  if (!document.is_object()) {
    throw ConfigError({value_text(document) + ": " + std::string(what) + " must be a JSON object"});
  }
  faults = std::move(scan.duplicates);
  return document;
}

Config config_from_json(std::string_view text) {
  std::vector<std::string> faults;
  const json document = read_object(text, "a configuration", faults);
  std::vector<std::string_view> known;
  for (const Key& key : key_table()) known.push_back(key.name);
  Config config;
  for (const auto& [name, value] : document.items()) {
    if (const Key* key = find_key(name)) {
      if (check_value(*key, value, faults)) set_field(config, *key, value);
    } else if (name != kSchemaKey) {
      faults.push_back(unknown_key(name, value, known));
    } else if (!value.is_string()) {
      faults.push_back("$schema = " + value_text(value) + ": must be text");
    }
  }
  check_together(config, faults);
  if (!faults.empty()) throw ConfigError(std::move(faults));
  return config;
}

}  // namespace trainmon
