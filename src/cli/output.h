// Text tables and JSON for the terminal.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "trainmon/read.h"

namespace trainmon::cli {

using Json = nlohmann::ordered_json;

// Prints `value` and a line end on stdout; text that is not UTF-8 is replaced.
void print_json(const Json& value);
// In a line, so that a program can read while the run goes on.
void print_json_line(const Json& value);
// A number for JSON: NaN and infinities as "nan", "inf", "-inf".
Json json_number(double value);
// A row with all its statistics.
Json json_row(const ReadRow& row, const Series& series);

// A number for people: up to five significant digits.
std::string short_number(double value);
// "layers.3.weight" or "layers.3 output.0"; the root module is "(root)".
std::string tensor_text(const Series& series);

std::string bold(const Context& context, std::string_view text);
std::string red(const Context& context, std::string_view text);

inline constexpr std::string_view kEllipsis = "\xE2\x80\xA6";
// `text` in at most `width` cells, the middle left out.
std::string shortened(const std::string& text, std::size_t width);

// Columns of width of terminal or COLUMNS; without either, as wide as need be.
std::size_t terminal_width();

// A line under a table that explains a word of it, where a person looks on.
void say_term(const Context& context, std::string_view text);

// A table whose last flexible column gives way when the terminal is too narrow.
class TextTable {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::right;
    bool is_flexible = false;  // shortened in the middle when there is no room
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One cell per column; `is_red` marks a row that is wrong.
  void add(std::vector<std::string> cells, bool is_red = false);
  void print(const Context& context) const;

 private:
  struct Line {
    std::vector<std::string> cells;
    bool is_red = false;
  };
  std::vector<Column> columns_;
  std::vector<Line> lines_;
};

}  // namespace trainmon::cli
