// The segment files of a log, and what the beginning of one says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "read/log.h"
#include "read/log_decode.h"
#include "trainmon/read.h"

namespace trainmon {

struct SegmentFile {
  int number = 0;
  std::filesystem::path path;
  bool is_file = true;  // as the directory says, which may be listed but not entered
};
// What retention.json of `directory` says; nothing deleted where there is none. One that is no such
// file is damage.
Expired expired_in(const std::filesystem::path& directory, std::vector<Damage>& damage);
// Everything in `directory` that has a segment's name and was not deleted, oldest first. What
// cannot be listed is damage.
std::vector<SegmentFile> segment_files(const std::filesystem::path& directory,
                                       std::vector<Damage>& damage);
// Bytes of these files; those that cannot be looked at are left out.
std::int64_t log_bytes(const std::filesystem::path& directory);

struct SegmentHead {
  std::optional<SegmentInfo> info;  // nullopt where the beginning is damaged, or is none yet
  std::int64_t bytes = -1;          // of the file; -1: it cannot be read

  bool is_compacted() const { return info && info->start.compacted_bytes > 0; }
  // How much of the file is sound, where the next segment says so of it as it was written; -1:
  // nobody says.
  std::int64_t sound_bytes(std::int64_t as_written) const {
    return is_compacted() ? info->start.compacted_bytes : as_written;
  }
};
SegmentHead head_of(std::string_view content);
SegmentHead read_head(const std::filesystem::path& path);

}  // namespace trainmon
