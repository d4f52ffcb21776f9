#include "cli/text_lines.h"

#include <algorithm>
#include <iostream>

#include "base/text.h"

namespace trainmon::cli {
namespace {

std::string cut_after_word(const std::string& text, std::size_t width) {
  if (display_width(text) <= width) return text;
  std::size_t end = std::string::npos;
  for (std::size_t at = text.find(' '); at != std::string::npos; at = text.find(' ', at + 1)) {
    if (display_width(text.substr(0, at)) + 2 > width) break;
    end = at;
  }
  return end == std::string::npos ? shortened(text, width)
                                  : text.substr(0, end) + " " + std::string(kEllipsis);
}

}  // namespace

void TextLines::columns(std::vector<TextTable::Column> columns) {
  std::vector<std::string> titles;
  for (const TextTable::Column& column : columns) titles.push_back(column.title);
  if (titles == titles_) return;
  titles_ = std::move(titles);
  columns_ = std::move(columns);
  widths_.assign(columns_.size(), 0);
  fit(titles_);
  is_new_ = true;
}

void TextLines::print(const std::vector<std::string>& cells, bool is_red) {
  fit(cells);
  if (is_new_) std::cout << bold(context_, text_of(titles_)) << "\n";
  is_new_ = false;
  const std::string text = text_of(cells);
  std::cout << (is_red ? red(context_, text) : text) << "\n";
}

void TextLines::fit(const std::vector<std::string>& cells) {
  for (std::size_t i = 0; i < cells.size(); ++i) {
    widths_[i] = std::max(widths_[i], display_width(cells[i]));
  }
}

std::string TextLines::text_of(const std::vector<std::string>& cells) const {
  const std::size_t room = terminal_width();
  std::size_t total = 2 * (widths_.size() - 1);
  for (const std::size_t width : widths_) total += width;
  std::string text;
  std::size_t used = 0;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    std::size_t width = widths_[i];
    if (columns_[i].is_flexible && total > room) {
      const std::size_t shorter =
          std::max(std::min<std::size_t>(16, width), width - std::min(width, total - room));
      total -= width - shorter;
      width = shorter;
    }
    const bool is_last = i + 1 == cells.size();
    if (is_last && room > used + 8) width = std::min(width, room - used);
    const std::string cell = is_last ? cut_after_word(cells[i], width) : shortened(cells[i], width);
    const std::string gap(width - display_width(cell), ' ');
    text += columns_[i].align == TextTable::Align::right ? gap + cell : cell + gap;
    text += "  ";
    used += width + 2;
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

}  // namespace trainmon::cli
