// A group frame of a compacted segment (docs/formats.md): batches that follow one another, joined
// column by column. So a reader unpacks few large pieces, and of them those it needs.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "trainmon/record.h"

namespace trainmon::log_format {

// Rows of one group, about: so many that packing is worth it, and so few that they fit in memory.
inline constexpr std::size_t kGroupRows = 1 << 16;
// And so much memory, where payloads are large.
inline constexpr std::size_t kGroupBytes = 24 << 20;

// Appends one frame with batches as they were read from a log, at least one; `series` has all that
// they name. Throws SinkError "too_large" beyond kMaxPayload.
void append_group_frame(std::string& out, std::uint32_t frame_number,
                        std::span<const RecordBatch> batches,
                        const std::map<SeriesId, Series>& series);

}  // namespace trainmon::log_format
