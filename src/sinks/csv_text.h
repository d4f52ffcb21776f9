// Lines of CSV (RFC 4180, but lines end with "\n"): fields, numbers, and the wide table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sinks/table.h"

namespace trainmon::csv_text {

// A field, quoted where it holds a comma, a quote, a line end or another control byte.
void append_field(std::string& text, std::string_view field);
// The shortest text that reads back as exactly this number; nan, inf, -inf.
void append_number(std::string& text, double value);
void append_number(std::string& text, std::int64_t value);
// How texts are put into cells: as they are, or with an apostrophe before what a spreadsheet may
// take for a formula.
enum class Cells : std::uint8_t { exact, safe };

// Fields of one line, one after another.
class Line {
 public:
  explicit Line(std::string& text, Cells cells = Cells::exact) : text_(text), cells_(cells) {}
  Line& field(std::string_view value);
  Line& exact(std::string_view value);  // whatever texts are
  Line& number(double value);
  Line& number(std::int64_t value);
  // One of the wide row. A fingerprint is its text, what is not known an empty field.
  void cell(std::int64_t value) { number(value); }
  void cell(double value) { number(value); }
  void cell(std::string_view value) { field(value); }
  void cell(Fingerprint value) { exact(fingerprint_text(value)); }
  void cell(Unknown) { separate(); }
  void end() { text_ += '\n'; }

 private:
  void separate();
  std::string& text_;
  const Cells cells_;
  bool is_first_ = true;
};

// A record that is no row: the line of column names, and the line of the record.
void append_names(std::string& text, std::span<const Cell> record);
void append_record(std::string& text, std::span<const Cell> record, Cells cells = Cells::exact);

// The wide table with these statistics. Counts are whole numbers, a statistic that is not there is
// an empty field.
class WideTable {
 public:
  explicit WideTable(const std::vector<std::string>& statistics, Cells cells = Cells::exact);
  // The line of column names.
  const std::string& header() const { return header_; }
  void append(std::string& text, const TableRow& row) const;

 private:
  const Cells cells_;
  std::string header_;
  std::vector<bool> is_count_;
};

}  // namespace trainmon::csv_text
