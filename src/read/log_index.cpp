// Newest segment first, because each says how long the sound part of the one before it is. What
// follows there is what a failed write left.
#include "read/log_index.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <tuple>

#include "base/file.h"
#include "base/parallel.h"
#include "read/index_file.h"
#include "read/log.h"
#include "read/log_segments.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

std::string missing_text(int first, int last) {
  return first == last
             ? "segment " + std::to_string(first) + " is missing"
             : "segments " + std::to_string(first) + " to " + std::to_string(last) + " are missing";
}

Damage cut_at(const fs::path& segment, std::int64_t bytes, std::int64_t sound) {
  return {segment, bytes, std::to_string(sound - bytes) + " bytes are missing at the end"};
}

// Some of all logs that this process reads at a time: descriptors are few.
std::shared_ptr<const File> hold(File&& file) {
  constexpr int kMost = 256;
  static std::atomic<int> held = 0;
  if (held.fetch_add(1) >= kMost) {
    held.fetch_sub(1);
    return nullptr;
  }
  return {new File(std::move(file)), [](const File* one) {
            delete one;
            held.fetch_sub(1);
          }};
}

}  // namespace

LogIndex::LogIndex(fs::path directory, int rank, int restart, Allowance& allowance,
                   unsigned threads, Kept kept)
    : directory_(std::move(directory)),
      rank_(rank),
      restart_(restart),
      allowance_(allowance),
      kept_(kept) {
  segments_ = linked_segments(directory_, rank_, restart_, contents_.damage);
  std::vector<SegmentIndex> found(segments_.size());
  // A writer may delete its oldest segments: those stay readable until they have been read.
  constexpr std::size_t kHeld = 32;
  const bool may_delete = !kept_.is_over;
  for_each_parallel(segments_.size(), threads, [&](std::size_t i) {
    found[i] = index_segment(segments_[i], may_delete && i + kHeld >= segments_.size());
  });
  // Another thread may have opened an older segment before the deletion of a newer one.
  const auto gone = std::ranges::find_if(segments_, &Segment::is_gone);
  found.resize(static_cast<std::size_t>(gone - segments_.begin()));
  segments_.erase(gone, segments_.end());
  for (std::size_t i = 0; i < segments_.size(); ++i) take(segments_[i], found[i]);
  std::reverse(segments_.begin(), segments_.end());
  std::reverse(found.begin(), found.end());
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    segments_[i].batches = std::move(found[i].places);
    segments_[i].records = std::move(found[i].contents.batches);
  }
  contents_.expired = expired_in(directory_, contents_.damage);
  drop_repeated();
  join_records();
  for (Segment& segment : segments_) {
    segment.places = BatchPlaces(segment.batches);
    std::vector<BatchPlace>().swap(segment.batches);
  }
  std::stable_sort(contents_.damage.begin(), contents_.damage.end(),
                   [](const Damage& a, const Damage& b) {
                     return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
                   });
}

// Newest first. Each segment names its forerunner, and how much of that is sound.
std::vector<LogIndex::Segment> LogIndex::linked_segments(const fs::path& directory, int rank,
                                                         int restart, std::vector<Damage>& damage) {
  std::vector<Segment> segments;
  std::vector<SegmentFile> files = segment_files(directory, damage);
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    if (file->is_file) {
      Segment& segment = segments.emplace_back();
      segment.number = file->number;
      segment.path = std::move(file->path);
    } else {
      damage.push_back({file->path, 0, "is no file"});
    }
  }
  int previous = -1;
  std::int64_t previous_bytes = 0;
  for (Segment& segment : segments) {
    if (previous > segment.number) {
      damage.push_back({directory, 0, missing_text(segment.number + 1, previous)});
    }
    if (previous == segment.number) segment.sound_bytes = previous_bytes;
    previous = -1;
    const std::optional<SegmentInfo> info = read_head(segment.path).info;
    if (!info || info->rank != rank || info->restart != restart ||
        info->start.number != segment.number) {
      continue;
    }
    previous = info->start.previous;
    previous_bytes = std::max<std::int64_t>(0, info->start.previous_bytes);
  }
  std::vector<Damage> said_elsewhere;
  if (previous >= expired_in(directory, said_elsewhere).first_segment) {
    damage.push_back({directory, 0, missing_text(previous, previous)});
  }
  return segments;
}

bool LogIndex::is_expired(const Segment& segment) const {
  std::vector<Damage> said_elsewhere;
  return segment.number < expired_in(directory_, said_elsewhere).first_segment;
}

std::vector<Damage> LogIndex::cut_segments(const fs::path& directory, int rank, int restart) {
  std::vector<Damage> damage;
  for (const Segment& segment : linked_segments(directory, rank, restart, damage)) {
    const SegmentHead head = read_head(segment.path);
    const std::int64_t sound = head.sound_bytes(segment.sound_bytes);
    if (head.bytes >= 0 && sound > head.bytes) {
      damage.push_back(cut_at(segment.path, head.bytes, sound));
    }
  }
  return damage;
}

SegmentIndex LogIndex::index_segment(Segment& segment, bool holds) const {
  const SegmentName name{segment.path, segment.number, rank_, restart_};
  SegmentIndex found;
  LogContents& contents = found.contents;
  const auto fault = [&](std::int64_t offset, std::string what) {
    contents.damage.push_back({segment.path, offset, std::move(what)});
  };
  std::string content;
  File file;
  try {
    file = open_file(segment.path);
    segment.file = file.identity();
    if (kept_.from_bytes >= 0) {
      if (std::optional<SegmentIndex> kept = read_index(name, segment.sound_bytes, file)) {
        if (holds) segment.held = hold(std::move(file));
        return std::move(*kept);
      }
    }
    content = read_file(file, segment.path);
  } catch (const SinkError& error) {
    segment.is_gone = is_expired(segment);
    if (!segment.is_gone) fault(0, error.what());
    return found;
  }
  contents.files = 1;
  contents.bytes = static_cast<std::int64_t>(content.size());
  std::string_view bytes = content;
  const SegmentHead head = head_of(content);
  const std::int64_t sound = head.sound_bytes(segment.sound_bytes);
  const bool has_end = sound >= 0;
  if (head.is_compacted() && segment.sound_bytes >= 0 &&
      segment.sound_bytes != head.info->start.written_bytes) {
    fault(0, "this is not the segment that the next one followed");
  }
  if (sound > contents.bytes) {
    contents.damage.push_back(cut_at(segment.path, contents.bytes, sound));
  } else if (has_end) {
    bytes = bytes.substr(0, static_cast<std::size_t>(sound));
  }
  const SegmentScan scan = scan_segment(bytes);
  for (const ScanFault& one : scan.faults) fault(one.offset, one.what);
  if (scan.is_torn && has_end && !bytes.empty()) fault(0, "the last frame is not complete");
  if (scan.is_torn && !has_end) contents.torn_tails = 1;
  index_frames(name, scan, allowance_, found);
  const bool is_written = has_end || kept_.is_over;
  if (is_written && kept_.from_bytes >= 0 && contents.bytes >= kept_.from_bytes) {
    write_index(name, segment.sound_bytes, file, content, found);
  }
  if (holds) segment.held = hold(std::move(file));
  return found;
}

void LogIndex::take(const Segment& segment, SegmentIndex& found) {
  LogContents& from = found.contents;
  contents_.files += from.files;
  contents_.bytes += from.bytes;
  contents_.torn_tails += from.torn_tails;
  contents_.damage.insert(contents_.damage.end(), from.damage.begin(), from.damage.end());
  if (contents_.series.size() == 0) contents_.series = from.series;
  for (const auto& [id, definition] : from.series) {
    if (contents_.series.contains(id) && contents_.series.at(id) == definition) continue;
    const auto [known, is_new] = contents_.series.own().emplace(id, definition);
    if (is_new) continue;
    contents_.damage.push_back(
        {segment.path, 0,
         "series " + std::to_string(id) +
             " is another one in a later segment; this segment is not used"});
    from.batches.clear();
    found.places.clear();
    return;
  }
  contents_.rows += from.rows;
  contents_.payloads += from.payloads;
  contents_.batch_count += from.batch_count;
  contents_.last_time_ns = std::max(contents_.last_time_ns, from.last_time_ns);
  contents_.windows.insert(from.windows);
}

bool LogIndex::has_repeated() const {
  std::vector<std::uint64_t> numbers;
  numbers.reserve(static_cast<std::size_t>(contents_.batch_count));
  for (const Segment& segment : segments_) {
    for (const BatchPlace& place : segment.batches) numbers.push_back(place.number);
  }
  if (!std::ranges::is_sorted(numbers)) std::ranges::sort(numbers);
  return std::ranges::adjacent_find(numbers) != numbers.end();
}

// A batch that is there twice counts once: where it comes last, as segments were read.
void LogIndex::drop_repeated() {
  if (!has_repeated()) return;
  std::map<std::uint64_t, const Segment*> seen;
  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    std::erase_if(segment->batches, [&](const BatchPlace& place) {
      const auto [first, is_new] = seen.emplace(place.number, &*segment);
      if (is_new) return false;
      contents_.rows -= place.facts.rows + place.facts.payloads;
      contents_.payloads -= place.facts.payloads;
      --contents_.batch_count;
      contents_.damage.push_back({segment->path, place.offset,
                                  "batch " + std::to_string(place.number) + " is also in " +
                                      first->second->path.filename().string() +
                                      " and not used twice"});
      return true;
    });
  }
}

// A batch without rows takes several times the memory of what it holds. They are joined from where
// they lie, for there may be one for each step.
void LogIndex::join_records() {
  std::vector<RecordBatch*> batches;
  for (Segment& segment : segments_) {
    for (const BatchPlace& place : segment.batches) {
      if (place.batch != BatchPlace::kNoBatch) batches.push_back(&segment.records[place.batch]);
    }
  }
  if (batches.empty()) return;
  if (!std::ranges::is_sorted(batches, {}, &RecordBatch::number)) {
    std::ranges::sort(batches, {}, &RecordBatch::number);
  }
  RecordBatch& all = contents_.batches.emplace_back();
  all.number = batches.front()->number;
  const auto move_all = [&](auto RecordBatch::*records) {
    std::size_t count = 0;
    for (const RecordBatch* batch : batches) count += (batch->*records).size();
    (all.*records).reserve(count);
    for (RecordBatch* batch : batches) {
      std::ranges::move(batch->*records, std::back_inserter(all.*records));
    }
  };
  for (const RecordBatch* batch : batches) contents_.outcomes.add(*batch);
  move_all(&RecordBatch::scalars);
  move_all(&RecordBatch::declared);
  move_all(&RecordBatch::alerts);
  move_all(&RecordBatch::gaps);
  for (Segment& segment : segments_) std::vector<RecordBatch>().swap(segment.records);
}

}  // namespace trainmon
