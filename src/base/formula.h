// Text that a spreadsheet would not take for text.
#pragma once

#include <string_view>

namespace trainmon {

// Whether a cell with this text may be taken for a formula: it begins with = + - @, a tab or a
// carriage return.
inline bool begins_formula(std::string_view text) {
  return !text.empty() && std::string_view("=+-@\t\r").find(text.front()) != std::string_view::npos;
}

}  // namespace trainmon
