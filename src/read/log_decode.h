// From the payloads of sound frames back to records. Nothing here trusts a length or a number.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "read/columns.h"
#include "read/log_bounds.h"
#include "read/log_columns.h"
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

// Each is nullopt (or false) when the payload is not what docs/formats.md says; `why` tells.
std::optional<SegmentInfo> decode_segment(std::string_view payload, std::string& why);
// Why the file of this number is not of this log; empty: it is.
std::string misplaced_text(const SegmentInfo& info, int rank, int restart, int number);
bool decode_series(std::string_view payload, std::map<SeriesId, Series>& series,
                   FrameBounds& bounds, std::string& why);

std::optional<RecordBatch> decode_batch(std::string_view payload, FrameBounds& bounds,
                                        std::string& why);
// The same into a batch whose memory is used again; what it holds after false means nothing. Of
// its rows only those of wanted series and these columns are decoded; other columns are those of
// Row{}. Payloads have their bytes, and there are checks, if these are among the columns.
bool decode_batch(std::string_view payload, RecordBatch& batch, FrameBounds& bounds,
                  std::string& why, Columns columns, const WantedSeries& wanted = {});

// Whether every shape that a row names is in the list of its batch; `why` tells.
bool has_listed_shapes(const RecordBatch& batch, std::string& why);

}  // namespace trainmon
