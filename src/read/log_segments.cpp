#include "read/log_segments.h"

#include <algorithm>
#include <optional>
#include <system_error>

#include "sinks/log_format.h"

namespace trainmon {

std::vector<SegmentFile> segment_files(const std::filesystem::path& directory,
                                       std::vector<Damage>& damage) {
  std::vector<SegmentFile> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    if (const std::optional<int> number = log_format::segment_number(path.filename().native())) {
      std::error_code unknown;
      files.push_back({*number, path, entry->is_regular_file(unknown)});
    }
  }
  if (error) damage.push_back({directory, 0, error.message()});
  std::ranges::sort(files, {}, &SegmentFile::number);
  return files;
}

}  // namespace trainmon
