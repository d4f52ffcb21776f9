// Rows of one place stand side by side after sorting; each such group is merged by itself.
#include "read/merge_rows.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "model/state_fields.h"
#include "read/series_index.h"

namespace trainmon {
namespace {

std::int64_t full_size(const Series& series) {
  std::int64_t size = 1;
  for (const std::int64_t dimension : series.full_shape) size *= dimension;
  return size;
}

class RankMerger {
 public:
  explicit RankMerger(RunRows& rows) : rows_(rows) {
    for (const Series& series : rows.series) index_.add(series);
    // Shards of one tensor differ in ranges (and hence in series), never in what they are part of.
    for (Series series : rows.series) {
      series.space = Space::whole;
      series.ranges.clear();
      series.dtype = DType::float32;
      series.full_shape.clear();
      series.replication = Replication::independent;
      whole_.push_back(wholes_.add(series));
    }
    for (const Series& series : rows.series) piece_.push_back(piece_of(series));
  }

  void merge() {
    std::vector<ReadRow>& all = rows_.rows;
    const auto place = [this](const ReadRow& row) {
      return std::tuple(row.restart, row.step, row.attempt, whole_[row.series], row.accum,
                        row.call);
    };
    std::sort(all.begin(), all.end(), [&](const ReadRow& a, const ReadRow& b) {
      return std::tuple(place(a), a.rank, a.seq) < std::tuple(place(b), b.rank, b.seq);
    });
    for (auto first = all.begin(); first != all.end();) {
      const auto last = std::find_if(
          first, all.end(), [&](const ReadRow& row) { return place(row) != place(*first); });
      merge_group({first, last});
      first = last;
    }
    std::sort(merged_.begin(), merged_.end(), [](const ReadRow& a, const ReadRow& b) {
      return std::tie(a.restart, a.step, a.attempt, a.rank, a.seq) <
             std::tie(b.restart, b.step, b.attempt, b.rank, b.seq);
    });
    all = std::move(merged_);
    rows_.series = index_.take();
  }

 private:
  using Group = std::span<const ReadRow>;
  using Turn = std::vector<const ReadRow*>;

  // Equal numbers for equal places in the full tensor, kNoPiece for those that name none.
  int piece_of(const Series& series) {
    if (series.ranges.empty()) return kNoPiece;
    std::vector<std::int64_t> bounds;
    for (const Range& range : series.ranges) {
      bounds.push_back(range.begin);
      bounds.push_back(range.end);
    }
    const auto next = static_cast<int>(pieces_.size());
    return pieces_.try_emplace({series.space, std::move(bounds)}, next).first->second;
  }

  Replication replication(const ReadRow& row) const { return index_.at(row.series).replication; }

  void merge_group(Group group) {
    std::vector<const ReadRow*> parts, copies;
    for (const ReadRow& row : group) {
      if (replication(row) == Replication::disjoint) {
        parts.push_back(&row);
      } else if (replication(row) == Replication::identical) {
        copies.push_back(&row);
      } else {
        merged_.push_back(row);
      }
    }
    for (const Turn& turn : turns_of(parts)) merge_parts(turn);
    for (const Turn& turn : turns_of(copies)) take_one(turn);
  }

  // The first row of every rank and piece, then the second of each, ...: a second backward through
  // one forward differs from the first in seq alone. Where not all have as many, nobody can say
  // which belong together: none is returned, and the rows stay per rank.
  std::vector<Turn> turns_of(const std::vector<const ReadRow*>& rows) {
    std::map<std::pair<int, int>, std::size_t> seen;  // rank, piece
    std::vector<Turn> turns;
    for (const ReadRow* row : rows) {
      const std::size_t turn = seen[{row->rank, piece_[row->series]}]++;
      if (turn == turns.size()) turns.emplace_back();
      turns[turn].push_back(row);
    }
    if (turns.empty() || turns.front().size() == turns.back().size()) return turns;
    for (const ReadRow* row : rows) merged_.push_back(*row);
    return {};
  }

  void merge_parts(const Turn& parts) {
    ReadRow whole = *parts.front();
    const Series first = index_.at(whole.series);
    whole.state = RowState();
    whole.rank = -1;
    std::set<int> seen;
    for (const ReadRow* part : parts) {
      // A part that several ranks hold (replicas of a shard) counts once.
      const int piece = piece_[part->series];
      if (piece != kNoPiece && !seen.insert(piece).second) continue;
      trainmon::merge(whole.state, part->state);
      whole.flags |= part->flags;
      whole.seq = std::min(whole.seq, part->seq);
    }
    if (!first.full_shape.empty() && whole.state.count != full_size(first)) {
      whole.flags |= flag::kPartial;
    }
    const auto full = rows_.shapes->find(first.full_shape);
    whole.shape = first.full_shape.empty() || full == rows_.shapes->end() ? nullptr : &*full;
    Series series = first;
    series.space = Space::whole;
    series.ranges.clear();
    whole.series = index_.add(series);
    merged_.push_back(whole);
  }

  void take_one(const Turn& copies) {
    const bool all_agree = std::all_of(copies.begin(), copies.end(), [&](const ReadRow* copy) {
      return copy->flags == copies.front()->flags && copy->shape == copies.front()->shape &&
             same_bits(copy->state, copies.front()->state);
    });
    if (!all_agree) {
      for (const ReadRow* copy : copies) merged_.push_back(*copy);
      return;
    }
    merged_.push_back(*copies.front());
    merged_.back().rank = -1;
  }

  RunRows& rows_;
  SeriesIndex index_;
  SeriesIndex wholes_;
  static constexpr int kNoPiece = -1;
  std::map<std::pair<Space, std::vector<std::int64_t>>, int> pieces_;
  std::vector<std::uint32_t> whole_;  // series -> what it is a part of
  std::vector<int> piece_;            // series -> which part of it
  std::vector<ReadRow> merged_;
};

}  // namespace

void merge_ranks(RunRows& rows) {
  RankMerger(rows).merge();
}

std::int64_t partial_rows(const RunRows& rows) {
  return std::count_if(rows.rows.begin(), rows.rows.end(),
                       [](const ReadRow& row) { return (row.flags & flag::kPartial) != 0; });
}

}  // namespace trainmon
