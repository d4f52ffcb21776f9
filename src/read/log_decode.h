// From the payloads of sound frames back to records. Nothing here trusts a length or a number.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "read/log_bounds.h"
#include "sinks/log_encode.h"
#include "trainmon/record.h"

namespace trainmon {

// What the first frame of a segment says.
struct SegmentInfo {
  log_format::SegmentStart start;
  int rank = 0;
  int world_size = 1;
  int restart = 0;
  double eps = 0.0;
  std::string run_id;
};

// Columns of rows. Of a mean and an absmax what they may be implied by belongs to them.
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
  constexpr bool has(log_format::Column column) const { return (bits_ & bit(column)) != 0; }
  constexpr Columns& operator|=(Columns others) {
    bits_ |= others.bits_;
    return *this;
  }

 private:
  static constexpr std::uint64_t bit(log_format::Column column) {
    return std::uint64_t{1} << static_cast<unsigned>(column);
  }
  std::uint64_t bits_ = 0;
};
// The columns of integers: which row it is, and its counts.
Columns integer_columns();
// Those and what derive() reads of the state.
Columns columns_of(Stat stat);

// Each is nullopt (or false) when the payload is not what docs/formats.md says; `why` tells.
std::optional<SegmentInfo> decode_segment(std::string_view payload, std::string& why);
bool decode_series(std::string_view payload, std::map<SeriesId, Series>& series,
                   FrameBounds& bounds, std::string& why);

std::optional<RecordBatch> decode_batch(std::string_view payload, FrameBounds& bounds,
                                        std::string& why);
// The same into a batch whose memory is used again; what it holds after false means nothing. Of its
// rows only these columns are decoded, the others are those of Row{}.
bool decode_batch(std::string_view payload, RecordBatch& batch, FrameBounds& bounds,
                  std::string& why, Columns columns);

}  // namespace trainmon
