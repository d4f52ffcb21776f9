// Finds the sound frames in the bytes of one segment, whatever else is among them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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
};

SegmentScan scan_segment(std::string_view bytes);

}  // namespace trainmon
