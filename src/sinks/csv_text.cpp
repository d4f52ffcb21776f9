// No locale and no allocation per number.
#include "sinks/csv_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/formula.h"

namespace trainmon::csv_text {
namespace {

bool needs_quotes(std::string_view field) {
  return std::ranges::any_of(field, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7F || c == ',' || c == '"';
  });
}

template <typename T>
void append_chars(std::string& text, T value) {
  std::array<char, 32> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  text.append(buffer.data(), result.ptr);
}

}  // namespace

void append_field(std::string& text, std::string_view field) {
  if (!needs_quotes(field)) {
    text += field;
    return;
  }
  text += '"';
  for (const char c : field) {
    if (c == '"') text += '"';
    text += c;
  }
  text += '"';
}

void append_number(std::string& text, double value) {
  if (std::isnan(value)) {
    text += "nan";  // whatever its sign
  } else if (value == 0.0 && !std::signbit(value)) {
    text += '0';
  } else {
    append_chars(text, value);
  }
}

void append_number(std::string& text, std::int64_t value) {
  append_chars(text, value);
}

void Line::separate() {
  if (!is_first_) text_ += ',';
  is_first_ = false;
}

Line& Line::field(std::string_view value) {
  const bool is_formula = cells_ == Cells::safe && begins_formula(value);
  return is_formula ? exact("'" + std::string(value)) : exact(value);
}

Line& Line::exact(std::string_view value) {
  separate();
  append_field(text_, value);
  return *this;
}

Line& Line::number(double value) {
  separate();
  append_number(text_, value);
  return *this;
}

Line& Line::number(std::int64_t value) {
  separate();
  append_number(text_, value);
  return *this;
}

void append_names(std::string& text, std::span<const Cell> record) {
  Line names(text);
  for (const Cell& cell : record) names.field(cell.name);
  names.end();
}

void append_record(std::string& text, std::span<const Cell> record, Cells cells) {
  Line line(text, cells);
  for (const Cell& cell : record) cell.is_number ? line.exact(cell.text) : line.field(cell.text);
  line.end();
}

WideTable::WideTable(const std::vector<std::string>& statistics, Cells cells) : cells_(cells) {
  Line line(header_);
  for (const std::string_view name : field_names(kWideRow)) line.field(name);
  for (const std::string& name : statistics) {
    line.field(name);
    is_count_.push_back(is_count(name));
  }
  line.end();
}

void WideTable::append(std::string& text, const TableRow& row) const {
  Line line(text, cells_);
  const auto put = [&](auto cell) { line.cell(cell); };
  for_each_field(kWideRow, [&](const auto& field) { put_cell(field.of(row, *row.series), put); });
  for (std::size_t i = 0; i < row.values.size(); ++i) row.put_value(i, is_count_[i], put);
  line.end();
}

}  // namespace trainmon::csv_text
