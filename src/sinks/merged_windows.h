// The rows of the windows under way, merged as they come: one state per source and window.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/histogram.h"
#include "sinks/curves.h"
#include "trainmon/sink.h"

namespace trainmon {

// What one source has of one window.
struct Slot {
  RowState state;
  Histogram histogram;
  std::int64_t rows = 0;       // merged in it
  std::int64_t unwritten = 0;  // of these, since it was last written
  std::uint64_t last_seq = 0;
};

struct MergedWindow {
  std::vector<Slot> slots;  // by source
  std::vector<std::pair<SourceId, std::string>> texts;
  std::vector<std::pair<std::string, double>> scalars;
  std::vector<std::pair<std::string, double>> declared;
  std::optional<std::int64_t> step;  // once it has ended
  bool is_dirty = false;
  std::int64_t time_ns = 0;
};

// False, and nothing is added, where the bins are others.
bool add(Histogram& into, const Histogram& from);

class MergedWindows {
 public:
  using Place = std::pair<std::int32_t, std::int64_t>;  // optimizer, window

  explicit MergedWindows(Curves& curves) : curves_(curves) {}
  // `clock` is the optimizer whose windows scalars follow.
  void open(const SeriesTable& series, int clock) {
    series_ = &series;
    clock_ = clock;
  }

  // Whether an optimizer has a newer window in the batch than here.
  bool are_followed_by(const RecordBatch& batch) const;
  // Takes a batch whole, or throws and takes none of it.
  void hold(const RecordBatch& batch);
  // An optimizer has so many newer windows.
  bool are_newer(std::int64_t windows, const Place& place) const;
  // What is written, but for the newest `windows` of each optimizer.
  void forget_all_but(std::int64_t windows);

  std::map<Place, MergedWindow>& by_place() { return windows_; }
  std::int64_t not_ready() const { return not_ready_; }  // rows without a value
  std::int64_t no_place() const { return no_place_; }    // payloads of other types

 private:
  struct Target {
    MergedWindow* window = nullptr;
    SourceId source = 0;
  };
  static constexpr SourceId kUnknownSource = 0xFFFFFFFF;

  Place place_of(const RowKey& key) const {
    return {series_->at(key.series).optimizer, key.window};
  }
  const Place* newest(std::int32_t optimizer) const;
  bool is_new(const Place& place) const;
  SourceId source_of_rows(SeriesId id);
  void take_row(const Target& target, const Row& row, std::int64_t time_ns);

  Curves& curves_;
  const SeriesTable* series_ = nullptr;
  int clock_ = 0;
  std::vector<SourceId> row_sources_;  // by series
  std::map<Place, MergedWindow> windows_;
  std::atomic<std::int64_t> no_place_{0};
  std::atomic<std::int64_t> not_ready_{0};
};

}  // namespace trainmon
