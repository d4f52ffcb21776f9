// Shapes of records that spell them out each time, once each and at an address that stays.
#pragma once

#include <charconv>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "sinks/log_format.h"
#include "trainmon/record.h"

namespace trainmon {

class KeptShapes {
 public:
  // Whether the cell holds a shape, as shape_text() or msprobe writes it, or nothing, which stands
  // for one that is not known.
  bool find(std::string_view cell, const Shape*& shape) {
    shape = nullptr;
    if (cell.empty()) return true;
    auto known = by_cell_.find(cell);
    if (known == by_cell_.end()) {
      std::optional<Shape> read = read_shape(cell);
      if (!read) return false;
      known = by_cell_.emplace(cell, std::move(*read)).first;
    }
    shape = &known->second;
    return true;
  }

 private:
  static std::optional<Shape> read_shape(std::string_view cell) {
    if (cell.size() < 2 || cell.front() != '[' || cell.back() != ']') return std::nullopt;
    Shape shape;
    const char* at = cell.data() + 1;
    const char* const end = cell.data() + cell.size() - 1;
    while (at != end) {
      if (!shape.empty() && *at++ != ',') return std::nullopt;
      if (!shape.empty() && at != end && *at == ' ') ++at;
      std::int64_t size = 0;
      const auto [next, error] = std::from_chars(at, end, size);
      if (error != std::errc() || size < 0) return std::nullopt;
      shape.push_back(size);
      at = next;
    }
    if (shape.size() > log_format::kMaxDimensions) return std::nullopt;
    return shape;
  }

  std::map<std::string, Shape, std::less<>> by_cell_;
};

}  // namespace trainmon
