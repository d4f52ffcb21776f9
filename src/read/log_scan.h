// Finds the sound frames in the bytes of one segment, whatever else is among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "read/log_bounds.h"
#include "sinks/log_format.h"

namespace trainmon {

struct LogFrame {
  log_format::FrameHeader header;
  std::int64_t offset = 0;   // of the frame in the file
  std::string_view payload;  // as stored; points into the bytes scanned
};

struct ScanFault {
  std::int64_t offset = 0;
  std::string what;
};

struct SegmentScan {
  std::vector<LogFrame> frames;  // by number, each number once
  std::vector<ScanFault> faults;
  bool is_torn = false;  // ends within a write that was never finished
  // What follows may still become a frame: an unfinished write, or bytes at the end that are none.
  std::size_t end = 0;
};

SegmentScan scan_segment(std::string_view bytes);
// The rest of a segment of which `offset` bytes and `frames` frames were read before. Offsets are
// those in the file, `end` is one in `bytes`.
SegmentScan scan_rest(std::string_view bytes, std::int64_t offset, std::uint32_t frames);

// The frame that begins at bytes[at]; nullopt where its checksums do not hold or it is not whole.
std::optional<LogFrame> frame_at(std::string_view bytes, std::size_t at);

// Points the frame's payload at its decompressed bytes, which `unpacked` keeps.
bool unpack(LogFrame& frame, std::string& unpacked, FrameBounds& bounds, std::string& why);

}  // namespace trainmon
