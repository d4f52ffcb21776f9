// The batches of a group frame, one after another, as they were before they were joined.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "read/columns.h"
#include "read/log_bounds.h"
#include "read/log_columns.h"
#include "trainmon/record.h"

namespace trainmon {

// What a group says of a batch, so that rows need not be decoded for it.
struct GroupedBatch {
  std::uint64_t rows = 0;
  bool has_bad_rows = false;                                   // a NaN or an infinity in one
  std::vector<std::pair<std::int32_t, std::int64_t>> windows;  // (optimizer, window), ascending
};

// Calls `take` for each batch; what it leaves in it is used again. Without columns the batches have
// no rows, else those of series that are wanted. `raw` is what the header of the frame says. False
// when the payload is not what docs/formats.md says; `why` tells. Batches before the place were
// given then.
bool decode_group(std::string_view payload, std::uint32_t raw, FrameBounds& bounds,
                  std::string& why, std::optional<Columns> columns, const WantedSeries& wanted,
                  const std::function<void(RecordBatch&, const GroupedBatch&)>& take);

}  // namespace trainmon
