// A segment as records, and records as one segment of few large frames: for those who write logs
// anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "read/log_decode.h"
#include "trainmon/record.h"

namespace trainmon {

// Why a segment stays as it is.
struct Stays : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct SegmentRecords {
  SegmentInfo info;
  std::map<SeriesId, Series> series;
  std::vector<RecordBatch> batches;
  std::size_t rows = 0;
  std::size_t frames = 0;
};

// Throws Stays where not every byte is understood.
SegmentRecords read_segment(std::string_view bytes);
// The bytes of a segment with these records. `written_bytes`: how long it was as the run wrote it,
// which the next segment says of it; 0: as long as it is now.
std::string joined(const SegmentRecords& records, std::int64_t written_bytes);
// In series, batches and rows, bit by bit.
bool same_records(const SegmentRecords& a, const SegmentRecords& b);

}  // namespace trainmon
