// The beginning of a segment tells where it belongs, without the rest.
#include "read/log_segments.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>

#include "base/file.h"
#include "read/log_scan.h"
#include "sinks/log_format.h"
#include "sinks/log_retention.h"

namespace trainmon {
namespace {

constexpr std::size_t kBeginning = 1 << 16;
constexpr std::int64_t kMostText = 1 << 16;  // of retention.json

}  // namespace

Expired expired_in(const std::filesystem::path& directory, std::vector<Damage>& damage) {
  const std::filesystem::path path = directory / kRetentionFile;
  Expired expired;
  try {
    const nlohmann::json said = nlohmann::json::parse(read_file(path, kMostText));
    const auto count = [&](const char* key) {
      const nlohmann::json& value = said.at(key);
      if (value.is_null()) return std::int64_t{-1};
      const auto number = value.get<std::int64_t>();
      if (number < 0) throw std::runtime_error(std::string(key) + " is negative");
      return number;
    };
    expired = {said.at("first_segment").get<int>(), count("rows"), count("batches")};
    if (expired.first_segment >= 0) return expired;
    damage.push_back({path, 0, "first_segment is negative"});
  } catch (const SinkError& error) {
    if (error.reason() != "gone") damage.push_back({path, 0, error.what()});
  } catch (const std::exception& error) {
    damage.push_back({path, 0, error.what()});
  }
  return {};
}

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
  // Asked for behind the list: whatever is missing there is told here.
  std::vector<Damage> said_elsewhere;
  const int first = expired_in(directory, said_elsewhere).first_segment;
  std::erase_if(files, [&](const SegmentFile& file) { return file.number < first; });
  std::ranges::sort(files, {}, &SegmentFile::number);
  return files;
}

std::int64_t log_bytes(const std::filesystem::path& directory) {
  std::vector<Damage> said_elsewhere;
  std::int64_t bytes = 0;
  for (const SegmentFile& file : segment_files(directory, said_elsewhere)) {
    std::error_code unknown;
    const std::uintmax_t size = std::filesystem::file_size(file.path, unknown);
    if (file.is_file && !unknown) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

SegmentHead head_of(std::string_view content) {
  SegmentHead head;
  head.bytes = static_cast<std::int64_t>(content.size());
  const SegmentScan scan = scan_segment(content.substr(0, kBeginning));
  for (LogFrame frame : scan.frames) {
    if (frame.header.type != static_cast<std::uint8_t>(log_format::FrameType::segment)) continue;
    std::string unpacked, why;
    Allowance none_used;
    FrameBounds bounds(frame.header.stored, none_used);
    if (unpack(frame, unpacked, bounds, why)) head.info = decode_segment(frame.payload, why);
    break;
  }
  return head;
}

SegmentHead read_head(const std::filesystem::path& path) {
  try {
    const File file = open_file(path);
    std::string beginning(kBeginning, '\0');
    beginning.resize(read_at(file, 0, beginning.data(), beginning.size(), path));
    SegmentHead head = head_of(beginning);
    head.bytes = linked_size(file, path);
    return head;
  } catch (const SinkError&) {
    return {};  // it is said when the whole file is read
  }
}

}  // namespace trainmon
