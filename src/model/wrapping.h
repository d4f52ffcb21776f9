// Arithmetic of numbers that a damaged file may hold: it wraps, where signed overflow is undefined.
#pragma once

#include <cstdint>

#include "model/both.h"

namespace trainmon {

TRAINMON_BOTH constexpr std::int64_t wrapping_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
TRAINMON_BOTH constexpr std::int64_t wrapping_difference(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

}  // namespace trainmon
