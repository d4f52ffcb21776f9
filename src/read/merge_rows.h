// Merging rows over ranks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "read/series_index.h"
#include "trainmon/read.h"

namespace trainmon {

// Merges rows over ranks, as read_run() says, place after place.
class RankMerger {
 public:
  // `series` are those of the rows; shapes of rows lie in `shapes`.
  RankMerger(const std::vector<Series>& series, std::shared_ptr<const std::set<Shape>> shapes);

  // Appends to `merged` what the rows come to. Every row of a restart, step and attempt is among
  // them, or none. They are sorted.
  void merge(std::vector<ReadRow>& rows, std::vector<ReadRow>& merged);
  // Of rows merged: those given, and wholes that were met.
  const Series& series(std::uint32_t number) const { return index_.at(number); }
  std::vector<Series> take_series() { return index_.take(); }
  // Whether rows of the series may be of one tensor with rows of another series.
  bool has_relatives(std::uint32_t number) const { return members_[whole_[number]] > 1; }
  // Whether its rows are copies of one row, and no row of another series is merged with them.
  bool has_copies_alone(std::uint32_t number) const {
    return index_.at(number).replication == Replication::identical && !has_relatives(number);
  }

 private:
  using Group = std::span<const ReadRow>;
  using Turn = std::vector<const ReadRow*>;
  static constexpr int kNoPiece = -1;

  int piece_of(const Series& series);
  Replication replication(const ReadRow& row) const { return index_.at(row.series).replication; }
  void merge_group(Group group, std::vector<ReadRow>& merged);
  std::vector<Turn> turns_of(const std::vector<const ReadRow*>& rows, std::vector<ReadRow>& merged);
  void merge_parts(const Turn& parts, std::vector<ReadRow>& merged);
  static void take_one(const Turn& copies, std::vector<ReadRow>& merged);

  SeriesIndex index_;
  SeriesIndex wholes_;
  std::shared_ptr<const std::set<Shape>> shapes_;
  std::map<std::pair<Space, std::vector<std::int64_t>>, int> pieces_;
  std::vector<std::uint32_t> whole_;  // series -> what it is a part of
  std::vector<int> members_;          // of a whole
  std::vector<int> piece_;            // series -> which part of it
};

// Rows on their way to a merger. Where all ranks have the same row, it is in memory once, with 16
// bytes for each rank.
class RowsToMerge {
 public:
  // `merger` must outlive it.
  explicit RowsToMerge(const RankMerger& merger) : merger_(&merger) {}
  // Rows of any steps, in any order.
  void add(const ReadRow& row);
  // Appends rows of which the merger makes what it would make of all that were added.
  void take(std::vector<ReadRow>& rows);

 private:
  struct Copy {
    std::int32_t rank = 0;
    std::uint64_t seq = 0;
    auto operator<=>(const Copy&) const = default;
  };
  // The rows of one place of a tensor that all ranks have as it is.
  struct Place {
    ReadRow row;
    std::vector<Copy> copies;
    bool has_others = false;  // rows_ has different ones of the place
  };
  using Key = std::tuple<std::int32_t, std::int64_t, std::int32_t, std::uint32_t, std::int32_t,
                         std::int32_t>;
  static Key key_of(const ReadRow& row) {
    return {row.restart, row.step, row.attempt, row.series, row.accum, row.call};
  }
  Place& place_of(const ReadRow& row);

  const RankMerger* merger_;
  std::vector<ReadRow> rows_;
  std::vector<Place> places_;
  std::map<Key, std::size_t> by_key_;
  std::size_t next_ = 0;  // the place that the next row is mostly of
};

// Rows that lack elements of their tensor.
std::int64_t partial_rows(const RunRows& rows);

}  // namespace trainmon
