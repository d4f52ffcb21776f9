// A segment is read, joined, decoded again and compared before its file is replaced.
#include "read/compact.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "base/file.h"
#include "read/completeness.h"
#include "read/index_file.h"
#include "read/joined_segment.h"
#include "read/log_scan.h"
#include "read/log_segments.h"
#include "read/run_layout.h"
#include "sinks/compress.h"
#include "sinks/log_group.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;
using namespace log_format;

// Frames with as many rows on average are large enough.
constexpr std::size_t kFewRows = kGroupRows / 4;

// A segment and what is known of it from outside.
struct Candidate {
  fs::path path;
  std::int64_t bytes = 0;
  std::int64_t sound_bytes = -1;  // as the next segment says
  bool is_last = false;
};

void compact_segment(const Candidate& segment, CompactedRank& rank) {
  if (fs::is_symlink(segment.path)) throw Stays("it is a symbolic link");
  if (fs::is_symlink(segment.path.parent_path())) throw Stays("its folder is a symbolic link");
  std::string content = read_file(segment.path);
  if (head_of(content).is_compacted()) {
    read_segment(content);  // what is damaged is said here, too
    ++rank.already;
    return;
  }
  const auto size = static_cast<std::int64_t>(content.size());
  if (segment.sound_bytes > size) throw Stays("bytes are missing at its end");
  // What a failed write left behind goes.
  if (segment.sound_bytes >= 0) content.resize(static_cast<std::size_t>(segment.sound_bytes));
  const SegmentRecords records = read_segment(content);
  if (records.info.rank != rank.rank || records.info.restart != rank.restart) {
    throw Stays("it is of rank " + std::to_string(records.info.rank) + ", restart " +
                std::to_string(records.info.restart));
  }
  if (records.rows >= kFewRows * records.frames) {
    ++rank.already;
    return;
  }
  const std::string compacted = joined(records, static_cast<std::int64_t>(content.size()));
  if (!same_records(records, read_segment(compacted))) {
    throw std::logic_error("compacting " + segment.path.string() + " would change it");
  }
  // Retention deletes segments while their run goes on: no file comes back.
  if (!fs::exists(segment.path)) throw Stays("it was deleted meanwhile");
  replace_durably(segment.path, compacted);
  ::unlink(index_path(segment.path).c_str());  // of bytes that are gone
  ++rank.segments;
  rank.frames_before += static_cast<std::int64_t>(records.frames);
  rank.frames_after += static_cast<std::int64_t>(scan_segment(compacted).frames.size());
  rank.bytes_before += size;
  rank.bytes_after += static_cast<std::int64_t>(compacted.size());
}

// How much of the segment before it is sound, as each segment says.
std::map<int, std::int64_t> sound_bytes(const std::vector<SegmentFile>& files) {
  std::map<int, std::int64_t> bytes;
  for (const SegmentFile& file : files) {
    const std::optional<SegmentInfo> info = read_head(file.path).info;
    if (info) bytes[info->start.previous] = info->start.previous_bytes;
  }
  return bytes;
}

std::vector<Candidate> candidates_in(const fs::path& directory, std::vector<Damage>& damage) {
  std::vector<SegmentFile> files = segment_files(directory, damage);
  std::erase_if(files, [](const SegmentFile& file) { return !file.is_file; });
  const std::map<int, std::int64_t> sound = sound_bytes(files);
  std::vector<Candidate> candidates;
  for (const SegmentFile& file : files) {
    Candidate& candidate = candidates.emplace_back();
    candidate.path = file.path;
    candidate.bytes = std::max<std::int64_t>(0, read_head(file.path).bytes);
    const auto said = sound.find(file.number);
    if (said != sound.end()) candidate.sound_bytes = said->second;
    candidate.is_last = &file == &files.back();
  }
  return candidates;
}

}  // namespace

Compaction compact(const fs::path& run,
                   const std::function<bool(std::int64_t, std::int64_t)>& progress) {
  if (!has_zstd()) throw std::runtime_error("this build has no zstd: a compacted log needs it");
  Compaction result;
  const std::vector<RankDirectory> directories = rank_directories(run);
  std::vector<std::pair<const RankDirectory*, std::vector<Candidate>>> work;
  std::int64_t total = 0, done = 0;
  for (const RankDirectory& directory : directories) {
    if (directory.error) {
      result.damage.push_back({directory.path, 0, directory.error.message()});
      continue;
    }
    work.emplace_back(&directory, candidates_in(directory.path, result.damage));
    for (const Candidate& segment : work.back().second) total += segment.bytes;
  }
  for (const auto& [directory, segments] : work) {
    const RunFacts facts = read_run_json(*directory, result.damage);
    const std::optional<StoredHealth> stored = read_health_json(*directory, result.damage);
    const WriterState writer = completeness_of(*directory, facts, stored, nullptr, true).writer;
    const bool is_over = writer == WriterState::closed || writer == WriterState::gone;
    CompactedRank& rank = result.ranks.emplace_back();
    rank.rank = directory->rank;
    rank.restart = directory->restart;
    // Two at once would write the same temporary file.
    const File lock = lock_directory(directory->path);
    for (const Candidate& segment : segments) {
      if (segment.is_last && !is_over) {
        rank.left.push_back({segment.path, "it may still be written", false});
      } else if (!lock.is_open()) {
        rank.left.push_back({segment.path,
                             "another trainmon compact is at work there, or the file system has no "
                             "locks",
                             true});
      } else {
        try {
          compact_segment(segment, rank);
        } catch (const std::runtime_error& error) {
          std::error_code unknown;
          const bool is_gone = !fs::exists(fs::symlink_status(segment.path, unknown));
          rank.left.push_back(
              {segment.path, is_gone ? "it was deleted meanwhile" : error.what(), !is_gone});
        }
      }
      done += segment.bytes;
      if (!progress(done, total)) return result;
    }
  }
  return result;
}

}  // namespace trainmon
