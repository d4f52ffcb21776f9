// Everything a run calls by name goes through printable(): names may hold escape codes.
#include "cli/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "base/text.h"
#include "model/wide_row.h"

namespace trainmon::cli {
namespace {

std::string painted(const Context& context, std::string_view text, const char* code) {
  if (!context.color) return std::string(text);
  return "\x1b[" + std::string(code) + "m" + std::string(text) + "\x1b[0m";
}

}  // namespace

void print_json(const Json& value) {
  std::cout << value.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

void print_json_line(const Json& value) {
  std::cout << value.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
}

Json json_number(double value) {
  if (std::isfinite(value)) return value;
  return number_text(value);
}

namespace {

// A cell of the wide row. A fingerprint is text: JSON's numbers are doubles to many readers.
struct PutJson {
  Json& to;
  void operator()(std::int64_t value) const { to = value; }
  void operator()(double value) const { to = json_number(value); }
  void operator()(std::string_view value) const { to = value; }
  void operator()(Fingerprint value) const { to = fingerprint_text(value); }
  void operator()(Unknown) const { to = nullptr; }
};

}  // namespace

Json json_row(const ReadRow& row, const Series& series) {
  Json out;
  const auto put = [&](std::string_view name) { return PutJson{out[std::string(name)]}; };
  for_each_field(kWideRow, [&](const auto& field) {
    if (field.in_answer == InAnswer::yes) put_cell(field.of(row, series), put(field.name));
  });
  for (const StatDefinition& definition : stat_table()) {
    if (!is_told(definition.stat, row.state)) {
      put(definition.name)(Unknown());
      continue;
    }
    put_statistic(derive(definition.stat, row.state), definition.type == "int64",
                  put(definition.name));
  }
  return out;
}

std::string short_number(double value) {
  return number_text(value, 5);
}

std::string tensor_text(const Series& series) {
  std::string text = series.name.empty() ? "(root)" : printable(series.name);
  if (series.chunk != 0) text = "chunk " + std::to_string(series.chunk) + ": " + text;
  return series.element.empty() ? text : text + " " + printable(series.element);
}

std::string shortened(const std::string& text, std::size_t width) {
  if (display_width(text) <= width) return text;
  const std::size_t front = (width - 1) / 2, back = width - 1 - front;
  std::vector<std::string> characters;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = std::max<std::size_t>(1, decode_utf8(text, at).length);
    characters.push_back(text.substr(at, length));
    at += length;
  }
  std::string head, tail;
  std::size_t used = 0;
  for (const std::string& c : characters) {
    if ((used += display_width(c)) > front) break;
    head += c;
  }
  used = 0;
  for (auto c = characters.rbegin(); c != characters.rend(); ++c) {
    if ((used += display_width(*c)) > back) break;
    tail.insert(0, *c);
  }
  return head + std::string(kEllipsis) + tail;
}

std::string bold(const Context& context, std::string_view text) {
  return painted(context, text, "1");
}

std::string red(const Context& context, std::string_view text) {
  return painted(context, text, "31");
}

void say_term(const Context& context, std::string_view text) {
  if (!context.quiet && ::isatty(STDOUT_FILENO) == 1) std::cout << "  " << text << "\n";
}

std::size_t terminal_width() {
  if (const char* columns = std::getenv("COLUMNS")) {
    std::size_t width = 0;
    const std::string_view text = columns;
    std::from_chars(text.data(), text.data() + text.size(), width);
    if (width >= 20) return width;
  }
  winsize size{};
  if (::ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) return size.ws_col;
  return std::string::npos;
}

void TextTable::add(std::vector<std::string> cells, bool is_red) {
  lines_.push_back({std::move(cells), is_red});
}

void TextTable::print(const Context& context) const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(display_width(column.title));
  for (const Line& line : lines_) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(line.cells[i]));
    }
  }
  std::size_t total = 2 * (widths.size() - 1);
  for (const std::size_t width : widths) total += width;
  const std::size_t room = terminal_width();
  for (std::size_t i = 0; i < widths.size() && total > room; ++i) {
    if (!columns_[i].is_flexible) continue;
    const std::size_t shorter = std::max<std::size_t>(
        std::min<std::size_t>(12, widths[i]), widths[i] - std::min(widths[i], total - room));
    total -= widths[i] - shorter;
    widths[i] = shorter;
  }
  const auto line_text = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string cell = shortened(cells[i], widths[i]);
      const std::string gap(widths[i] - display_width(cell), ' ');
      text += columns_[i].align == Align::right ? gap + cell : cell + gap;
      text += "  ";
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  };
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::cout << bold(context, line_text(titles)) << "\n";
  for (const Line& line : lines_) {
    const std::string text = line_text(line.cells);
    std::cout << (line.is_red ? red(context, text) : text) << "\n";
  }
}

}  // namespace trainmon::cli
