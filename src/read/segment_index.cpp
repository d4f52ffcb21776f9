// One look at each frame: rows are looked at as far as their windows and bad values, and let go.
#include "read/segment_index.h"

#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

#include "model/first_bad.h"
#include "read/log_decode.h"
#include "read/log_group.h"

namespace trainmon {
namespace {

using log_format::Column;
using log_format::column_of;

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

bool holds_anything(const RecordBatch& batch) {
  return !batch.outcomes.empty() || !batch.scalars.empty() || !batch.declared.empty() ||
         !batch.alerts.empty() || !batch.gaps.empty();
}

// What a group says of a batch takes the place of a look at its rows.
void note_windows(LogContents& contents, const GroupedBatch& batch, BatchFacts& facts) {
  facts.rows = static_cast<std::int64_t>(batch.rows);
  facts.has_bad_rows = batch.has_bad_rows;
  for (const auto& window : batch.windows) {
    facts.add_windows(window.second, window.second);
    contents.windows.insert(window.first, window.second);
  }
  facts.series = ~std::uint64_t{0};
}

// Counts the rows and payloads of a batch, notes their windows and lets them go. Returns how many
// records are of series that nobody defined before them.
std::int64_t count_and_drop_rows(LogContents& contents, const Optimizers& optimizers,
                                 RecordBatch& batch, BatchFacts& facts) {
  std::int64_t undefined = 0;
  std::pair<std::int32_t, std::int64_t> last_window = {-1, -1};
  for (const Row& row : batch.rows) {
    const std::optional<std::int32_t> optimizer = optimizers.of(row.key.series);
    if (!optimizer) {
      ++undefined;
      continue;
    }
    const std::pair window(*optimizer, row.key.window);
    if (window != last_window) contents.windows.insert(window.first, window.second);
    last_window = window;
    facts.add_windows(row.key.window, row.key.window);
    facts.series |= BatchFacts::bit(row.key.series);
    facts.has_bad_rows = facts.has_bad_rows || is_bad(row.key.flags, row.state);
    ++facts.rows;
  }
  batch.rows.clear();
  batch.shapes.clear();
  const auto is_undefined = [&](const auto& record) {
    return !contents.series.contains(record.key.series);
  };
  undefined += static_cast<std::int64_t>(std::erase_if(batch.payloads, is_undefined));
  for (const Payload& payload : batch.payloads) {
    facts.add_windows(payload.key.window, payload.key.window);
    facts.series |= BatchFacts::bit(payload.key.series);
    ++facts.payloads;
  }
  contents.rows += facts.rows + facts.payloads;
  contents.payloads += facts.payloads;
  batch.payloads.clear();
  return undefined + static_cast<std::int64_t>(std::erase_if(batch.alerts, is_undefined));
}

// A definition counts wherever it stands: frames of a damaged log may be out of order.
std::vector<const LogFrame*> definitions_first(const SegmentScan& scan) {
  std::vector<const LogFrame*> frames;
  for (const LogFrame& one : scan.frames) frames.push_back(&one);
  std::ranges::stable_partition(frames, [](const LogFrame* one) {
    const auto type = static_cast<log_format::FrameType>(one->header.type);
    return type == log_format::FrameType::segment || type == log_format::FrameType::series;
  });
  return frames;
}

// What stays is what the file is, and its damage.
void forget_records(SegmentIndex& index) {
  LogContents rest;
  rest.files = index.contents.files;
  rest.bytes = index.contents.bytes;
  rest.torn_tails = index.contents.torn_tails;
  rest.damage = std::move(index.contents.damage);
  index.contents = std::move(rest);
  index.places.clear();
}

}  // namespace

void index_frames(const SegmentName& segment, const SegmentScan& scan, Allowance& allowance,
                  SegmentIndex& index) {
  LogContents& contents = index.contents;
  Optimizers optimizers(contents.series);
  RecordBatch batch;
  std::string unpacked;
  // Notes where a batch is and keeps what it holds besides rows, which `count` takes out.
  const auto add_batch = [&](const LogFrame& stored, RecordBatch& one, const auto& count) {
    BatchPlace& place = index.places.emplace_back();
    place.offset = stored.offset;
    place.stored = stored.header.stored;
    place.number = one.number;
    const std::int64_t undefined = count(place.facts);
    ++contents.batch_count;
    contents.last_time_ns = std::max(contents.last_time_ns, one.time_ns);
    if (!holds_anything(one)) return undefined;
    place.batch = contents.batches.size();
    contents.batches.push_back(one);  // without rows, which keep their memory
    return undefined;
  };
  const std::size_t damage_before = contents.damage.size();
  for (const LogFrame* const stored : definitions_first(scan)) {
    LogFrame frame = *stored;
    std::string why;
    FrameBounds bounds(frame.header.stored, allowance);
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
        if (info) why = misplaced_text(*info, segment.rank, segment.restart, segment.number);
        if (why.empty()) break;
        fault();
        forget_records(index);
        return;
      }
      case log_format::FrameType::series:
        is_used = decode_series(frame.payload, contents.series.own(), bounds, why);
        optimizers.refresh();
        break;
      case log_format::FrameType::batch:
        is_used = decode_batch(frame.payload, batch, bounds, why, kFirstLook);
        if (!is_used) break;
        undefined = add_batch(*stored, batch, [&](BatchFacts& facts) {
          return count_and_drop_rows(contents, optimizers, batch, facts);
        });
        break;
      case log_format::FrameType::group:
        is_used = decode_group(frame.payload, frame.header.raw, bounds, why, std::nullopt, {},
                               [&](RecordBatch& one, const GroupedBatch& grouped) {
                                 undefined += add_batch(*stored, one, [&](BatchFacts& facts) {
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
    index.took_allowance = index.took_allowance || bounds.took_allowance();
  }
  std::ranges::stable_sort(contents.damage | std::views::drop(damage_before), {}, &Damage::offset);
}

}  // namespace trainmon
