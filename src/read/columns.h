// Which columns of a log's rows are decoded, and whether checks, samples and payloads are.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "sinks/log_format.h"
#include "trainmon/stat.h"

namespace trainmon {

// Columns of rows, and what stands beside them: checks, samples, and the bytes of payloads. Of a
// mean and an absmax what they may be implied by belongs to them.
class Columns {
 public:
  constexpr Columns() = default;
  constexpr Columns(std::initializer_list<log_format::Column> columns) {
    for (const log_format::Column column : columns) bits_ |= bit(column);
  }
  static constexpr Columns all() { return of(~std::uint64_t{0}); }
  // The same columns of rows.
  constexpr Columns beside(bool checks, bool samples, bool payload_bytes) const {
    return of((bits_ & ~kBeside) | (checks ? kChecks : 0) | (samples ? kSamples : 0) |
              (payload_bytes ? kPayloadBytes : 0));
  }
  constexpr Columns without_rows() const { return of(bits_ & kBeside); }
  constexpr bool has(log_format::Column column) const { return (bits_ & bit(column)) != 0; }
  constexpr bool has_checks() const { return (bits_ & kChecks) != 0; }
  constexpr bool has_samples() const { return (bits_ & kSamples) != 0; }
  constexpr bool has_payload_bytes() const { return (bits_ & kPayloadBytes) != 0; }
  constexpr Columns& operator|=(Columns others) {
    bits_ |= others.bits_;
    return *this;
  }

 private:
  static constexpr std::uint64_t kPayloadBytes = 1;  // no column has the number 0, 62 or 63
  static constexpr std::uint64_t kSamples = std::uint64_t{1} << 62;
  static constexpr std::uint64_t kChecks = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kBeside = kPayloadBytes | kSamples | kChecks;
  static constexpr Columns of(std::uint64_t bits) {
    Columns columns;
    columns.bits_ = bits;
    return columns;
  }
  static constexpr std::uint64_t bit(log_format::Column column) {
    return std::uint64_t{1} << static_cast<unsigned>(column);
  }
  std::uint64_t bits_ = 0;
};
// All that says which row it is, and what derive() reads of the state.
Columns columns_of(Stat stat);
Columns columns_of(std::span<const Stat> stats);
// Series and window, without which no row has a step, and what these cells are made of. Cells are
// made of fields of the wide row, by name, and of statistics.
Columns columns_of_cells(std::span<const std::string_view> fields, std::span<const Stat> stats);

}  // namespace trainmon
