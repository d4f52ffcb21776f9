// One object of JSON on a line of its own, member by member.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/text.h"
#include "model/wide_row.h"
#include "sinks/csv_text.h"

namespace trainmon {

class JsonLine {
 public:
  explicit JsonLine(std::string& text) : text_(text) { text_ += '{'; }
  void end() { text_ += "}\n"; }

  // A member whose value is JSON. Readers take -0 for an integer.
  void json(std::string_view name, std::string_view value) {
    key(name);
    text_ += value;
    if (value == "-0") text_ += ".0";
  }
  void cell(std::string_view name, std::int64_t value) {
    key(name);
    csv_text::append_number(text_, value);
  }
  // JSON has no NaN and no infinity: they are the strings nan, inf, -inf.
  void cell(std::string_view name, double value) {
    number_.clear();
    csv_text::append_number(number_, value);
    std::isfinite(value) ? json(name, number_) : cell(name, std::string_view(number_));
  }
  void cell(std::string_view name, std::string_view value) { json(name, json_string(value)); }
  // Text, too: numbers of JSON are doubles to many readers.
  void cell(std::string_view name, Fingerprint value) { cell(name, fingerprint_text(value)); }
  // What is not known has no member.
  void cell(std::string_view, Unknown) {}

 private:
  void key(std::string_view name) {
    if (!is_first_) text_ += ',';
    is_first_ = false;
    text_ += '"';
    text_ += name;
    text_ += "\":";
  }

  std::string& text_;
  std::string number_;  // its memory serves every cell
  bool is_first_ = true;
};

}  // namespace trainmon
