#include "read/joined_segment.h"

#include <algorithm>
#include <optional>
#include <span>

#include "read/log_group.h"
#include "read/log_scan.h"
#include "read/read_series.h"
#include "sinks/log_encode.h"
#include "sinks/log_group.h"

namespace trainmon {
namespace {

using namespace log_format;

void require_defined(const SegmentRecords& records, const RecordBatch& batch) {
  for_each_series(batch, [&](SeriesId id) {
    if (!records.series.contains(id)) throw Stays("records of series whose definition is lost");
  });
}

void read_frame(LogFrame& frame, std::string& unpacked, FrameBounds& bounds,
                SegmentRecords& records) {
  std::string why;
  if (!unpack(frame, unpacked, bounds, why)) throw Stays(why);
  switch (static_cast<FrameType>(frame.header.type)) {
    case FrameType::segment:
      if (const auto info = decode_segment(frame.payload, why)) {
        records.info = *info;
        return;
      }
      break;
    case FrameType::series:
      if (decode_series(frame.payload, records.series, bounds, why)) return;
      break;
    case FrameType::batch:
      if (auto batch = decode_batch(frame.payload, bounds, why)) {
        require_defined(records, *batch);
        records.rows += batch->rows.size();
        records.batches.push_back(std::move(*batch));
        return;
      }
      break;
    case FrameType::group:
      if (decode_group(frame.payload, frame.header.raw, bounds, why, Columns::all(), {},
                       [&](RecordBatch& batch, const GroupedBatch&) {
                         require_defined(records, batch);
                         records.rows += batch.rows.size();
                         records.batches.push_back(batch);
                       })) {
        return;
      }
      break;
  }
  throw Stays(why.empty() ? "a frame of a later version" : why);
}

bool same_rows(const std::vector<Row>& a, const std::vector<Row>& b) {
  const auto same = [](const Row& x, const Row& y) {
    return std::ranges::all_of(kColumns, [&](const ColumnDefinition& one) {
      return one.type == ColumnType::integer
                 ? integer_of(x, one.column) == integer_of(y, one.column)
                 : same_bits(float_of(x, one.column), float_of(y, one.column));
    });
  };
  return std::ranges::equal(a, b, same);
}

bool same_batch(const RecordBatch& a, const RecordBatch& b) {
  std::string a_records, b_records;
  append_batch_without_rows(a_records, a);
  append_batch_without_rows(b_records, b);
  return a_records == b_records && same_rows(a.rows, b.rows);
}

}  // namespace

SegmentRecords read_segment(std::string_view bytes) {
  ByteReader minor(bytes.substr(std::min(bytes.size(), kPreambleBytes - sizeof(std::uint16_t))));
  if (minor.fixed<std::uint16_t>() > kMinorCompacted) throw Stays("written by a later version");
  const SegmentScan scan = scan_segment(bytes);
  if (!scan.faults.empty()) throw Stays(scan.faults.front().what);
  if (scan.is_torn) throw Stays("its last frame is not complete");
  SegmentRecords records;
  records.frames = scan.frames.size();
  Allowance allowance;
  std::string unpacked;
  for (LogFrame frame : scan.frames) {
    FrameBounds bounds(frame.header.stored, allowance);
    read_frame(frame, unpacked, bounds, records);
  }
  if (scan.frames.empty() || records.info.start.number < 0) throw Stays("it has no beginning");
  return records;
}

std::string joined(const SegmentRecords& records, std::int64_t written_bytes) {
  std::string frames;
  std::uint32_t number = 1;
  if (!records.series.empty()) ReadSeries(records.series).append_frame(frames, number++);
  const std::vector<RecordBatch>& batches = records.batches;
  for (std::size_t first = 0, end = 0; first < batches.size(); first = end) {
    std::size_t rows = 0, bytes = 0;
    for (; end < batches.size() && rows < kGroupRows && bytes < kGroupBytes; ++end) {
      rows += batches[end].rows.size();
      bytes += batches[end].bytes();
    }
    append_group_frame(frames, number++, {batches.data() + first, end - first}, records.series);
  }
  RunInfo run;
  run.rank = records.info.rank;
  run.world_size = records.info.world_size;
  run.restart = records.info.restart;
  run.eps = records.info.eps;
  run.run_id = records.info.run_id;
  SegmentStart start = records.info.start;
  start.written_bytes = written_bytes;
  start.compacted_bytes = 1;  // any number takes as many bytes
  std::string beginning;
  append_segment_start(beginning, run, start);
  start.compacted_bytes = static_cast<std::int64_t>(beginning.size() + frames.size());
  beginning.clear();
  append_segment_start(beginning, run, start);
  return beginning + frames;
}

bool same_records(const SegmentRecords& a, const SegmentRecords& b) {
  return a.series == b.series && std::ranges::equal(a.batches, b.batches, same_batch);
}

}  // namespace trainmon
