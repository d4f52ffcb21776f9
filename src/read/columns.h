// Which columns of a log's rows are decoded.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "sinks/log_format.h"
#include "trainmon/stat.h"

namespace trainmon {

// Columns of rows. Of a mean and an absmax what they may be implied by belongs to them. The bytes
// of payloads stand beside them.
class Columns {
 public:
  constexpr Columns() = default;
  constexpr Columns(std::initializer_list<log_format::Column> columns) {
    for (const log_format::Column column : columns) bits_ |= bit(column);
  }
  static constexpr Columns all() {
    Columns columns;
    columns.bits_ = ~std::uint64_t{0};
    return columns;
  }
  constexpr Columns with_payload_bytes(bool are_wanted) const {
    Columns columns = *this;
    columns.bits_ = are_wanted ? bits_ | kPayloadBytes : bits_ & ~kPayloadBytes;
    return columns;
  }
  constexpr bool has_payload_bytes() const { return (bits_ & kPayloadBytes) != 0; }
  constexpr bool has(log_format::Column column) const { return (bits_ & bit(column)) != 0; }
  constexpr Columns& operator|=(Columns others) {
    bits_ |= others.bits_;
    return *this;
  }

 private:
  static constexpr std::uint64_t bit(log_format::Column column) {
    return std::uint64_t{1} << static_cast<unsigned>(column);
  }
  static constexpr std::uint64_t kPayloadBytes = 1;  // no column has the number 0
  std::uint64_t bits_ = 0;
};
// Which row it is, whether it has a NaN or an infinity, and what else derive() reads of its state.
Columns columns_of(Stat stat);
Columns columns_of(std::span<const Stat> stats);

}  // namespace trainmon
