// Tables whose lines come one by one.
#pragma once

#include <string>
#include <vector>

#include "cli/output.h"

namespace trainmon::cli {

// A column may grow wider, never narrower; titles are repeated when the columns change. The
// flexible column gives way on a narrow terminal; what does not fit of the last one is cut off
// after a word.
class TextLines {
 public:
  explicit TextLines(const Context& context) : context_(context) {}

  void columns(std::vector<TextTable::Column> columns);
  void print(const std::vector<std::string>& cells, bool is_red);

 private:
  void fit(const std::vector<std::string>& cells);
  std::string text_of(const std::vector<std::string>& cells) const;

  const Context& context_;
  std::vector<TextTable::Column> columns_;
  std::vector<std::string> titles_;
  std::vector<std::size_t> widths_;
  bool is_new_ = true;
};

}  // namespace trainmon::cli
