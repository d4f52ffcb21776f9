// Newest segment first, because each says how long the sound part of the one before it is: what
// follows there is what a failed write left.
#include "read/log_index.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <tuple>

#include "base/file.h"
#include "base/parallel.h"
#include "read/log.h"
#include "read/log_group.h"
#include "read/log_segments.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;
using log_format::Column;
using log_format::column_of;

std::string missing_text(int first, int last) {
  return first == last
             ? "segment " + std::to_string(first) + " is missing"
             : "segments " + std::to_string(first) + " to " + std::to_string(last) + " are missing";
}

Damage cut_at(const fs::path& segment, std::int64_t bytes, std::int64_t sound) {
  return {segment, bytes, std::to_string(sound - bytes) + " bytes are missing at the end"};
}

// Whose windows the rows of a series follow: asked for each row.
class Optimizers {
 public:
  explicit Optimizers(const std::map<SeriesId, Series>& series) : series_(series) {}
  // After definitions were added.
  void refresh() {
    few_.assign(few_.size(), std::nullopt);
    for (const auto& [id, definition] : series_) {
      if (id >= kFewSeries) break;
      if (id >= few_.size()) few_.resize(id + 1);
      few_[id] = definition.optimizer;
    }
  }
  std::optional<std::int32_t> of(SeriesId id) const {
    if (id < few_.size()) return few_[id];
    const auto found = series_.find(id);
    return found == series_.end() ? std::nullopt : std::optional(found->second.optimizer);
  }

 private:
  const std::map<SeriesId, Series>& series_;
  std::vector<std::optional<std::int32_t>> few_;
};

// What the first pass looks at in a row.
constexpr Columns kFirstLook = {Column::series, Column::window, column_of(&RowState::nans),
                                column_of(&RowState::pos_infs), column_of(&RowState::neg_infs)};

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

bool holds_anything(const RecordBatch& batch) {
  return !batch.outcomes.empty() || !batch.scalars.empty() || !batch.declared.empty() ||
         !batch.alerts.empty() || !batch.gaps.empty();
}

void add_window(LogIndex::BatchFacts& facts, std::int64_t window) {
  const bool is_first = facts.first_window > facts.last_window;
  facts.first_window = is_first ? window : std::min(facts.first_window, window);
  facts.last_window = is_first ? window : std::max(facts.last_window, window);
}

// What a group says of a batch takes the place of a look at its rows.
void note_windows(LogContents& contents, const GroupedBatch& batch, LogIndex::BatchFacts& facts) {
  facts.rows = static_cast<std::int64_t>(batch.rows);
  facts.has_bad_rows = batch.has_bad_rows;
  for (const auto& window : batch.windows) {
    add_window(facts, window.second);
    contents.windows.insert(contents.windows.end(), window);
  }
  facts.series = ~std::uint64_t{0};
}

// Counts the rows and payloads of a batch, notes their windows and lets them go. Returns how many
// records are of series that nobody defined before them.
std::int64_t count_and_drop_rows(LogContents& contents, const Optimizers& optimizers,
                                 RecordBatch& batch, LogIndex::BatchFacts& facts) {
  std::int64_t undefined = 0;
  std::pair<std::int32_t, std::int64_t> last_window = {-1, -1};
  for (const Row& row : batch.rows) {
    const std::optional<std::int32_t> optimizer = optimizers.of(row.key.series);
    if (!optimizer) {
      ++undefined;
      continue;
    }
    const std::pair window(*optimizer, row.key.window);
    if (window != last_window) contents.windows.insert(contents.windows.end(), window);
    last_window = window;
    add_window(facts, row.key.window);
    facts.series |= LogIndex::BatchFacts::bit(row.key.series);
    facts.has_bad_rows = facts.has_bad_rows || row.state.non_finite();
    ++facts.rows;
  }
  batch.rows.clear();
  batch.shapes.clear();
  const auto is_undefined = [&](const auto& record) {
    return !contents.series.contains(record.key.series);
  };
  undefined += static_cast<std::int64_t>(std::erase_if(batch.payloads, is_undefined));
  for (const Payload& payload : batch.payloads) {
    add_window(facts, payload.key.window);
    facts.series |= LogIndex::BatchFacts::bit(payload.key.series);
    ++facts.payloads;
  }
  contents.rows += facts.rows + facts.payloads;
  contents.payloads += facts.payloads;
  batch.payloads.clear();
  return undefined + static_cast<std::int64_t>(std::erase_if(batch.alerts, is_undefined));
}

}  // namespace

LogIndex::LogIndex(fs::path directory, int rank, int restart, Allowance& allowance,
                   unsigned threads)
    : directory_(std::move(directory)), rank_(rank), restart_(restart), allowance_(allowance) {
  segments_ = linked_segments(directory_, rank_, restart_, contents_.damage);
  std::vector<Found> found(segments_.size());
  // Of a run that deletes its oldest segments, those stay readable until they have been read.
  constexpr std::size_t kHeld = 32;
  const bool deletes = expired_in(directory_, contents_.damage).first_segment > 0;
  for_each_parallel(segments_.size(), threads, [&](std::size_t i) {
    found[i] = index_segment(segments_[i], deletes && i + kHeld >= segments_.size());
  });
  for (std::size_t i = 0; i < segments_.size(); ++i) take(segments_[i], std::move(found[i]));
  std::reverse(segments_.begin(), segments_.end());
  std::vector<Damage> said;
  contents_.expired = expired_in(directory_, said);
  drop_repeated();
  if (!std::ranges::is_sorted(contents_.batches, {}, &RecordBatch::number)) {
    std::ranges::sort(contents_.batches, {}, &RecordBatch::number);
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

LogIndex::Found LogIndex::index_segment(Segment& segment, bool holds) const {
  Found found;
  LogContents& contents = found.contents;
  const auto fault = [&](std::int64_t offset, std::string what) {
    contents.damage.push_back({segment.path, offset, std::move(what)});
  };
  std::string content;
  try {
    File file = open_file(segment.path);
    segment.file = file.identity();
    content = read_file(file, segment.path);
    if (holds) segment.held = hold(std::move(file));
  } catch (const SinkError& error) {
    if (!is_expired(segment)) fault(0, error.what());
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
  index_frames(segment, scan, found);
  return found;
}

void LogIndex::index_frames(const Segment& segment, const SegmentScan& scan, Found& found) const {
  LogContents& contents = found.contents;
  Optimizers optimizers(contents.series);
  RecordBatch batch;
  std::string unpacked;
  // Notes where a batch is and keeps what it holds besides rows, which `count` takes out.
  const auto add_batch = [&](const LogFrame& stored, RecordBatch& one, const auto& count) {
    BatchPlace& place = found.places.emplace_back();
    place.frame = stored;
    place.frame.payload = {};
    place.number = one.number;
    const std::int64_t undefined = count(place.facts);
    ++contents.batch_count;
    contents.last_time_ns = std::max(contents.last_time_ns, one.time_ns);
    if (!holds_anything(one)) return undefined;
    place.batch = contents.batches.size();
    contents.batches.push_back(one);  // without rows, which keep their memory
    return undefined;
  };
  for (const LogFrame& stored : scan.frames) {
    LogFrame frame = stored;
    std::string why;
    FrameBounds bounds(frame.header.stored, allowance_);
    const auto fault = [&] { contents.damage.push_back({segment.path, frame.offset, why}); };
    if (!unpack(frame, unpacked, bounds, why)) {
      fault();
      continue;
    }
    bool is_used = true;
    std::int64_t undefined = 0;
    switch (static_cast<log_format::FrameType>(frame.header.type)) {
      case log_format::FrameType::segment: {
        const std::optional<SegmentInfo> info = decode_segment(frame.payload, why);
        if (info && (info->rank != rank_ || info->restart != restart_ ||
                     info->start.number != segment.number)) {
          why = "this is segment " + std::to_string(info->start.number) + " of rank " +
                std::to_string(info->rank) + ", restart " + std::to_string(info->restart) +
                ": it does not belong here and is not used";
        }
        if (why.empty()) break;
        fault();
        found.places.clear();
        contents.series.clear();
        contents.batches.clear();
        contents.windows.clear();
        contents.rows = 0;
        contents.payloads = 0;
        contents.batch_count = 0;
        contents.last_time_ns = 0;
        return;
      }
      case log_format::FrameType::series:
        is_used = decode_series(frame.payload, contents.series, bounds, why);
        optimizers.refresh();
        break;
      case log_format::FrameType::batch:
        is_used = decode_batch(frame.payload, batch, bounds, why, kFirstLook);
        if (!is_used) break;
        undefined = add_batch(stored, batch, [&](BatchFacts& facts) {
          return count_and_drop_rows(contents, optimizers, batch, facts);
        });
        break;
      case log_format::FrameType::group:
        is_used = decode_group(frame.payload, frame.header.raw, bounds, why, std::nullopt, {},
                               [&](RecordBatch& one, const GroupedBatch& grouped) {
                                 undefined += add_batch(stored, one, [&](BatchFacts& facts) {
                                   note_windows(contents, grouped, facts);
                                   return count_and_drop_rows(contents, optimizers, one, facts);
                                 });
                               });
        break;
    }
    if (is_used && undefined > 0) {
      why = std::to_string(undefined) + " records of series whose definition is lost";
    }
    if (!is_used || undefined > 0) fault();
  }
}

void LogIndex::take(Segment& segment, Found&& found) {
  LogContents& from = found.contents;
  contents_.files += from.files;
  contents_.bytes += from.bytes;
  contents_.torn_tails += from.torn_tails;
  contents_.damage.insert(contents_.damage.end(), from.damage.begin(), from.damage.end());
  for (const auto& [id, definition] : from.series) {
    const auto [known, is_new] = contents_.series.emplace(id, definition);
    if (is_new || known->second == definition) continue;
    contents_.damage.push_back(
        {segment.path, 0,
         "series " + std::to_string(id) +
             " is another one in a later segment; this segment is not used"});
    return;
  }
  contents_.rows += from.rows;
  contents_.payloads += from.payloads;
  contents_.batch_count += from.batch_count;
  contents_.last_time_ns = std::max(contents_.last_time_ns, from.last_time_ns);
  contents_.windows.merge(from.windows);
  for (BatchPlace& place : found.places) {
    if (place.batch != kNoBatch) place.batch += contents_.batches.size();
  }
  std::move(from.batches.begin(), from.batches.end(), std::back_inserter(contents_.batches));
  segment.batches = std::move(found.places);
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
  std::vector<bool> is_repeated(contents_.batches.size());
  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    std::erase_if(segment->batches, [&](const BatchPlace& place) {
      const auto [first, is_new] = seen.emplace(place.number, &*segment);
      if (is_new) return false;
      if (place.batch != kNoBatch) is_repeated[place.batch] = true;
      contents_.rows -= place.facts.rows + place.facts.payloads;
      contents_.payloads -= place.facts.payloads;
      --contents_.batch_count;
      contents_.damage.push_back({segment->path, place.frame.offset,
                                  "batch " + std::to_string(place.number) + " is also in " +
                                      first->second->path.filename().string() +
                                      " and not used twice"});
      return true;
    });
  }
  std::size_t index = 0;
  std::erase_if(contents_.batches, [&](const RecordBatch&) { return is_repeated[index++]; });
}

}  // namespace trainmon
