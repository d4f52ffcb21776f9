// What the first pass over a log finds in one of its segments: everything but rows and payloads,
// and where those are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <vector>

#include "read/log.h"
#include "read/log_bounds.h"
#include "read/log_scan.h"

namespace trainmon {

// Writers number series from 0; a number beyond this is looked up, not a place in a table.
inline constexpr SeriesId kFewSeries = 1 << 22;

// What is known of a batch, or of several, whose rows are not in memory; all of series that are
// defined.
struct BatchFacts {
  std::int64_t rows = 0;
  std::int64_t payloads = 0;
  std::int64_t first_window = 0;  // of its rows and payloads, over all optimizers
  std::int64_t last_window = -1;
  bool has_bad_rows = false;  // a NaN or an infinity in one
  std::uint64_t series = 0;   // bits of those that rows and payloads may be of
  static std::uint64_t bit(SeriesId id) { return std::uint64_t{1} << id % 64; }
  void add_windows(std::int64_t first, std::int64_t last) {
    const bool is_first = first_window > last_window;
    first_window = is_first ? first : std::min(first_window, first);
    last_window = is_first ? last : std::max(last_window, last);
  }
  void add(const BatchFacts& other) {
    rows += other.rows;
    payloads += other.payloads;
    if (other.first_window <= other.last_window) add_windows(other.first_window, other.last_window);
    has_bad_rows = has_bad_rows || other.has_bad_rows;
    series |= other.series;
  }
};

struct BatchPlace {
  static constexpr std::size_t kNoBatch = std::numeric_limits<std::size_t>::max();
  std::int64_t offset = 0;   // of its frame in the file
  std::uint32_t stored = 0;  // bytes of the frame's payload there
  bool is_believed = true;   // this process has held the frame against its bounds
  std::uint64_t number = 0;
  std::size_t batch = kNoBatch;  // in SegmentIndex::contents
  BatchFacts facts;
};

struct SegmentIndex {
  LogContents contents;  // its series are those that the segment defines itself
  std::vector<BatchPlace> places;
  bool took_allowance = false;  // a frame holds more than its bounds
};

// Which segment it is to be.
struct SegmentName {
  std::filesystem::path path;
  int number = 0;
  int rank = 0;
  int restart = 0;
};
// Adds what the frames of a segment hold. One of another rank, restart or number adds its damage
// alone.
void index_frames(const SegmentName& segment, const SegmentScan& scan, Allowance& allowance,
                  SegmentIndex& index);

}  // namespace trainmon
