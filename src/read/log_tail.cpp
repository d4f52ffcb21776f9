// A frame that is not whole yet is looked at again when the file has grown. What is behind the
// last frame of a segment is given up only when there is a next one.
#include "read/log_tail.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>

#include "base/file.h"
#include "read/log_decode.h"
#include "read/log_group.h"
#include "read/log_scan.h"
#include "read/log_segments.h"
#include "sinks/log_format.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNumbersKept = 65536;

}  // namespace

LogTail::LogTail(fs::path directory, int rank, int restart, std::size_t segments)
    : directory_(std::move(directory)), rank_(rank), restart_(restart), from_end_(segments) {}

fs::path LogTail::path(int segment) const {
  return directory_ / log_format::segment_name(segment);
}

// What the segment holds after offset_. A compacted file in its place is read from its beginning:
// what was given before is known by its numbers.
std::pair<std::string, bool> LogTail::read_rest(std::int64_t most) {
  const fs::path file_path = path(*segment_);
  const File file = open_file(file_path);
  if (file.identity() != file_) {
    file_ = file.identity();
    offset_ = 0;
    frames_ = 0;
    said_ = -1;
  }
  const off_t size = ::lseek(file.fd(), 0, SEEK_END);
  if (size < 0) throw file_error(errno, "cannot read", file_path);
  std::string bytes;
  if (size <= offset_) return {bytes, false};
  const std::int64_t rest = size - offset_;
  bytes.resize(static_cast<std::size_t>(std::min(rest, most)));
  bytes.resize(read_at(file, offset_, bytes.data(), bytes.size(), file_path));
  return {std::move(bytes), rest > most};
}

// Numbers ascend but for a few, so one below all that are kept is old.
bool LogTail::is_new(std::uint64_t batch) {
  if (numbers_.size() >= kNumbersKept && batch < *numbers_.begin()) return false;
  if (!numbers_.insert(batch).second) return false;
  if (numbers_.size() > kNumbersKept) numbers_.erase(numbers_.begin());
  return true;
}

bool LogTail::look(const Take& take, std::vector<Damage>& damage, std::int64_t most) {
  const std::vector<SegmentFile> there = segment_files(directory_, damage);
  if (there.empty()) {
    from_end_ = std::numeric_limits<std::size_t>::max();
    return false;
  }
  if (!segment_) {
    const std::size_t skipped = there.size() - std::clamp<std::size_t>(from_end_, 1, there.size());
    segment_ = there[skipped].number;
    is_whole_ = skipped == 0;
  }
  // What was not read of a segment that the writer has deleted on purpose is gone.
  const int first = there.front().number;
  if (*segment_ < first && is_expired()) begin(first);
  bool is_new = false;
  while (true) {
    const auto next = std::ranges::upper_bound(there, *segment_, {}, &SegmentFile::number);
    const bool is_last = next == there.end();
    is_new |= read(take, is_last, most, damage);
    if (is_last || most <= 0) return is_new;
    begin(next->number);
  }
}

void LogTail::begin(int segment) {
  segment_ = segment;
  offset_ = 0;
  frames_ = 0;
  said_ = -1;
  is_foreign_ = false;
}

bool LogTail::is_expired() const {
  std::vector<Damage> said_elsewhere;
  return *segment_ < expired_in(directory_, said_elsewhere).first_segment;
}

// Leaves `most` what may still be read; 0: there may be more.
bool LogTail::read(const Take& take, bool is_last, std::int64_t& most,
                   std::vector<Damage>& damage) {
  bool is_new = false;
  std::int64_t piece = most;
  while (!is_foreign_) {
    const std::int64_t before = offset_;
    try {
      const auto [bytes, is_part] = read_rest(piece);
      take_frames(bytes, is_last || is_part, take, damage);
      if (is_part && offset_ == before) {
        piece *= 2;  // for one frame
        continue;
      }
      if (is_part) {
        most = 0;
        return true;
      }
      most -= offset_ - before;
    } catch (const SinkError& error) {
      if (said_ == offset_ || is_expired()) break;
      said_ = offset_;
      damage.push_back({path(*segment_), offset_, error.what()});
    }
    if (offset_ == before) break;
    is_new = true;
  }
  return is_new;
}

void LogTail::take_frames(std::string_view bytes, bool is_last, const Take& take,
                          std::vector<Damage>& damage) {
  const fs::path file = path(*segment_);
  SegmentScan scan;
  if (offset_ == 0) {
    if (bytes.size() < log_format::kPreambleBytes) return;  // not begun yet
    scan = scan_segment(bytes);
  } else {
    scan = scan_rest(bytes, offset_, frames_);
  }
  const std::int64_t end = offset_ + static_cast<std::int64_t>(scan.end);
  for (const ScanFault& fault : scan.faults) {
    // At the end of the newest segment the rest may be on its way.
    if (fault.offset >= end && fault.offset > 0 && is_last) continue;
    if (fault.offset <= said_) continue;
    damage.push_back({file, fault.offset, fault.what});
    said_ = fault.offset;
  }
  offset_ = scan.frames.empty() && offset_ == 0 ? 0 : end;
  std::string unpacked;
  for (LogFrame& frame : scan.frames) {
    frames_ = std::max(frames_, frame.header.number + 1);
    std::string why;
    FrameBounds bounds(frame.header.stored, allowance_);
    const auto fault = [&] { damage.push_back({file, frame.offset, why}); };
    if (!unpack(frame, unpacked, bounds, why)) {
      fault();
      continue;
    }
    if (!take_frame(frame, bounds, take, damage, why)) fault();
    if (is_foreign_) return;
  }
}

bool LogTail::take_frame(LogFrame& frame, FrameBounds& bounds, const Take& take,
                         std::vector<Damage>& damage, std::string& why) {
  const auto give = [&](RecordBatch& batch) {
    if (!is_new(batch.number)) return;
    drop_undefined(batch, frame.offset, damage);
    take(std::move(batch));
  };
  switch (static_cast<log_format::FrameType>(frame.header.type)) {
    case log_format::FrameType::segment:
      if (const auto info = decode_segment(frame.payload, why)) {
        why = misplaced_text(*info, rank_, restart_, *segment_);
        is_foreign_ = !why.empty();
      }
      return why.empty();
    case log_format::FrameType::series:
      return decode_series(frame.payload, series_, bounds, why);
    case log_format::FrameType::batch: {
      std::optional<RecordBatch> batch = decode_batch(frame.payload, bounds, why);
      if (batch) give(*batch);
      return batch.has_value();
    }
    case log_format::FrameType::group:
      return decode_group(frame.payload, frame.header.raw, bounds, why, Columns::all(), {},
                          [&](RecordBatch& batch, const GroupedBatch&) { give(batch); });
  }
  return true;  // a later version's
}

void LogTail::drop_undefined(RecordBatch& batch, std::int64_t offset,
                             std::vector<Damage>& damage) const {
  const auto is_undefined = [&](const auto& record) {
    return !series_.contains(record.key.series);
  };
  const std::size_t count = std::erase_if(batch.rows, is_undefined) +
                            std::erase_if(batch.payloads, is_undefined) +
                            std::erase_if(batch.alerts, is_undefined);
  if (count == 0) return;
  damage.push_back({path(*segment_), offset,
                    std::to_string(count) + " records of series whose definition is lost"});
}

}  // namespace trainmon
