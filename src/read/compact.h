// Rewrites segments that nobody writes any more, so that they are read in few large frames. Not a
// row, record or batch changes; a segment that is not sound to the last byte stays as it is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trainmon/read.h"

namespace trainmon {

struct CompactedRank {
  int rank = 0;
  int restart = 0;
  std::int64_t segments = 0;       // that were rewritten
  std::int64_t already = 0;        // that were before, or have large frames anyway
  std::int64_t frames_before = 0;  // of those that were rewritten, as the next three
  std::int64_t frames_after = 0;
  std::int64_t bytes_before = 0;
  std::int64_t bytes_after = 0;
  // Segments as they were, and why: damaged, still written, no room on the disk, ...
  struct Left {
    std::filesystem::path segment;
    std::string why;
    bool is_fault = false;  // not when it is only still written
  };
  std::vector<Left> left;
};
struct Compaction {
  std::vector<CompactedRank> ranks;  // by rank, restart
  std::vector<Damage> damage;        // of run.json and health.json
};

// Readers may read at the same time: each sees the old file of a segment or the new one. Memory is
// twice the largest segment and some. `progress` gets bytes done and bytes in all; it stops, after
// a segment, when that returns false. Throws std::runtime_error as read_run().
Compaction compact(const std::filesystem::path& run,
                   const std::function<bool(std::int64_t, std::int64_t)>& progress);

}  // namespace trainmon
