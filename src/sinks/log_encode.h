// From records to the frames of a log segment.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sinks/log_format.h"
#include "trainmon/sink.h"

namespace trainmon::log_format {

// What the first frame of a segment says.
struct SegmentStart {
  std::int32_t number = -1;
  std::int32_t previous = -1;       // number of the segment before, -1 for none
  std::int64_t previous_bytes = 0;  // length of its sound part; what follows there is debris
  // Of a compacted segment: its length, and how long it was as the run wrote it; else 0.
  std::int64_t compacted_bytes = 0;
  std::int64_t written_bytes = 0;
};

// Appends the 16 bytes every segment begins with and its first frame (number 0).
void append_segment_start(std::string& out, const RunInfo& run, const SegmentStart& start);
// Appends a frame that defines the given series.
void append_series_frame(std::string& out, std::uint32_t frame_number,
                         const std::vector<SeriesId>& ids, const SeriesTable& series);
// Appends the frame of one batch, whose shapes are those of `series`, and of gaps only the sink
// knows of. Throws SinkError "too_large" beyond kMaxPayload.
void append_batch_frame(std::string& out, std::uint32_t frame_number, const RecordBatch& batch,
                        const SeriesTable& series, const std::vector<Gap>& more_gaps = {});
// As readers count what a frame holds (docs/formats.md, Bounds of readers).
std::size_t record_count(const RecordBatch& batch);
// Appends the payload of a batch frame but for its rows; the shapes are the batch's own.
void append_batch_without_rows(std::string& out, const RecordBatch& batch);
// Fills in the header, room for which begins at out[start]; the payload is all that follows. The
// size in the file and the checksums are computed.
void complete_frame(std::string& out, std::size_t start, const FrameHeader& header);
// Calls `use` for the series of every record in the batch that names one, repeats included.
void for_each_series(const RecordBatch& batch, const std::function<void(SeriesId)>& use);

}  // namespace trainmon::log_format
