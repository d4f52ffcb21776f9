// The number of elements that a list of sizes, read from a file, stands for.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>

namespace trainmon {

// The product (1 without sizes, 0 where one is 0); nullopt where a size is negative or the product
// does not fit.
inline std::optional<std::int64_t> count_of(std::span<const std::int64_t> sizes) {
  bool is_empty = false;
  for (const std::int64_t size : sizes) {
    if (size < 0) return std::nullopt;
    is_empty |= size == 0;
  }
  if (is_empty) return 0;
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (count > std::numeric_limits<std::int64_t>::max() / size) return std::nullopt;
    count *= size;
  }
  return count;
}

}  // namespace trainmon
