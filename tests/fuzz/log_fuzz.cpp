// A segment of the log: as it is, and once more with the checksums put right, so that what they
// protect is read too.
#include <algorithm>
#include <set>
#include <vector>

#include "base/file.h"
#include "frames.h"
#include "fuzz.h"
#include "read/log.h"
#include "read/log_scan.h"
#include "sinks/log_format.h"
#include "trainmon/read.h"

namespace trainmon::fuzz {
namespace {

std::string key_of(const Row& row) {
  std::string key;
  for (const log_format::ColumnDefinition& column : log_format::kColumns) {
    log_format::ByteWriter writer(key);
    if (column.type == log_format::ColumnType::integer) {
      writer.fixed(log_format::integer_of(row, column.column));
    } else {
      writer.fixed(log_format::float_of(row, column.column));
    }
  }
  return key;
}

LogContents contents_of(std::string_view bytes) {
  put(scratch() / "log-000000.tmlog", bytes);
  LogContents contents = read_log(scratch(), 0, 0);
  std::int64_t rows = 0, payloads = 0;
  for (const RecordBatch& batch : contents.batches) {
    rows += static_cast<std::int64_t>(batch.rows.size());
    payloads += static_cast<std::int64_t>(batch.payloads.size());
    for (const Row& row : batch.rows) {
      check(contents.series.contains(row.key.series), "the series of a row is known");
    }
  }
  check(contents.files == 1, "the segment is counted");
  check(contents.rows == rows + payloads, "rows counted are rows read");
  for (const Damage& one : contents.damage) check(!one.what.empty(), "damage says what");
  return contents;
}

// A frame but for its number.
std::string frame_key(const LogFrame& frame) {
  return std::string{static_cast<char>(frame.header.type), static_cast<char>(frame.header.codec)} +
         std::to_string(frame.header.raw) + ":" + std::string(frame.payload);
}

// What the sound log of the corpus holds.
struct Sound {
  std::set<std::string> frames;
  std::set<std::string> rows;
};
const Sound& sound() {
  static const Sound known = [] {
    Sound found;
    const std::string bytes = read_file(TRAINMON_DAMAGED "/base/log-000000.tmlog");
    for (const LogFrame& frame : scan_segment(bytes).frames) found.frames.insert(frame_key(frame));
    for (const RecordBatch& batch : contents_of(bytes).batches) {
      for (const Row& row : batch.rows) found.rows.insert(key_of(row));
    }
    check(!found.rows.empty(), "the sound log has rows");
    return found;
  }();
  return known;
}

}  // namespace
}  // namespace trainmon::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainmon;
  const std::string bytes(fuzz::text_of(data, size));
  const fuzz::Sound& sound = fuzz::sound();
  const SegmentScan scan = scan_segment(bytes);
  // Unless the fuzzer forged a checksum, every frame believed is one of the sound log's, and so is
  // every row.
  const bool is_forged = std::any_of(
      scan.frames.begin(), scan.frames.end(),
      [&](const LogFrame& frame) { return !sound.frames.contains(fuzz::frame_key(frame)); });
  const LogContents contents = fuzz::contents_of(bytes);
  if (!is_forged) {
    for (const RecordBatch& batch : contents.batches) {
      for (const Row& row : batch.rows) {
        fuzz::check(sound.rows.contains(fuzz::key_of(row)), "no row that was never written");
      }
    }
    const bool is_whole = contents.rows == static_cast<std::int64_t>(sound.rows.size());
    fuzz::check(is_whole || !contents.damage.empty() || contents.torn_tails > 0 ||
                    scan.frames.size() < sound.frames.size(),
                "rows are never lost in silence");
  }
  fuzz::contents_of(fuzz::with_checksums(bytes));
  return 0;
}
