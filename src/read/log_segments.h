// The segments of the log of one rank and restart: which files there are.
#pragma once

#include <filesystem>
#include <vector>

#include "trainmon/read.h"

namespace trainmon {

struct SegmentFile {
  int number = 0;
  std::filesystem::path path;
  bool is_file = true;  // as the directory says, which may be listed but not entered
};
// Everything in `directory` that has a segment's name, oldest first. What cannot be listed is
// damage.
std::vector<SegmentFile> segment_files(const std::filesystem::path& directory,
                                       std::vector<Damage>& damage);

}  // namespace trainmon
