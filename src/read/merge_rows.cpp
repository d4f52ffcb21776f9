// Rows of one place stand side by side after sorting; each such group is merged by itself.
#include "read/merge_rows.h"

#include <algorithm>
#include <map>
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

bool are_copies(const ReadRow& a, const ReadRow& b) {
  return a.flags == b.flags && a.shape == b.shape && same_bits(a.state, b.state);
}

}  // namespace

RankMerger::RankMerger(const std::vector<Series>& series,
                       std::shared_ptr<const std::set<Shape>> shapes)
    : shapes_(std::move(shapes)) {
  for (const Series& one : series) index_.add(one);
  // Shards of one tensor differ in ranges (and hence in series), never in what they are part of.
  for (Series one : series) {
    piece_.push_back(piece_of(one));
    one.space = Space::whole;
    one.ranges.clear();
    one.dtype = DType::float32;
    one.full_shape.clear();
    one.replication = Replication::independent;
    whole_.push_back(wholes_.add(one));
    members_.resize(std::max<std::size_t>(members_.size(), whole_.back() + 1));
    ++members_[whole_.back()];
  }
}

void RankMerger::merge(std::vector<ReadRow>& rows, std::vector<ReadRow>& merged) {
  const auto place = [this](const ReadRow& row) {
    return std::tuple(row.restart, row.step, row.attempt, whole_[row.series], row.accum, row.call);
  };
  std::sort(rows.begin(), rows.end(), [&](const ReadRow& a, const ReadRow& b) {
    return std::tuple(place(a), a.rank, a.seq) < std::tuple(place(b), b.rank, b.seq);
  });
  for (auto first = rows.begin(); first != rows.end();) {
    const auto last = std::find_if(first, rows.end(),
                                   [&](const ReadRow& row) { return place(row) != place(*first); });
    merge_group({first, last}, merged);
    first = last;
  }
}

// Equal numbers for equal places in the full tensor, kNoPiece for those that name none.
int RankMerger::piece_of(const Series& series) {
  if (series.ranges.empty()) return kNoPiece;
  std::vector<std::int64_t> bounds;
  for (const Range& range : series.ranges) {
    bounds.push_back(range.begin);
    bounds.push_back(range.end);
  }
  const auto next = static_cast<int>(pieces_.size());
  return pieces_.try_emplace({series.space, std::move(bounds)}, next).first->second;
}

void RankMerger::merge_group(Group group, std::vector<ReadRow>& merged) {
  Turn parts, copies;
  for (const ReadRow& row : group) {
    if (replication(row) == Replication::disjoint) {
      parts.push_back(&row);
    } else if (replication(row) == Replication::identical) {
      copies.push_back(&row);
    } else {
      merged.push_back(row);
    }
  }
  for (const Turn& turn : turns_of(parts, merged)) merge_parts(turn, merged);
  for (const Turn& turn : turns_of(copies, merged)) take_one(turn, merged);
}

// The first row of every rank and piece, then the second of each, and so on. A second backward
// through one forward differs from the first in seq alone. Where not all have as many, nobody can
// say which belong together: none is returned, and the rows stay per rank.
std::vector<RankMerger::Turn> RankMerger::turns_of(const std::vector<const ReadRow*>& rows,
                                                   std::vector<ReadRow>& merged) {
  std::map<std::pair<int, int>, std::size_t> seen;  // rank, piece
  std::vector<Turn> turns;
  for (const ReadRow* row : rows) {
    const std::size_t turn = seen[{row->rank, piece_[row->series]}]++;
    if (turn == turns.size()) turns.emplace_back();
    turns[turn].push_back(row);
  }
  if (turns.empty() || turns.front().size() == turns.back().size()) return turns;
  for (const ReadRow* row : rows) merged.push_back(*row);
  return {};
}

void RankMerger::merge_parts(const Turn& parts, std::vector<ReadRow>& merged) {
  ReadRow whole = *parts.front();
  const Series first = index_.at(whole.series);
  whole.state = RowState();
  whole.rank = -1;
  std::map<int, const ReadRow*> pieces;
  for (const ReadRow* part : parts) {
    // A part that several ranks hold (replicas of a shard) counts once. Where they do not agree,
    // they are of several tensors, or one is wrong.
    const int piece = piece_[part->series];
    const auto [known, is_new] = pieces.try_emplace(piece, part);
    if (piece != kNoPiece && !is_new) {
      if (are_copies(*part, *known->second)) continue;
      for (const ReadRow* each : parts) merged.push_back(*each);
      return;
    }
    trainmon::merge(whole.state, part->state);
    whole.flags |= part->flags;
    whole.seq = std::min(whole.seq, part->seq);
  }
  if (!first.full_shape.empty() && whole.state.count != full_size(first)) {
    whole.flags |= flag::kPartial;
  }
  const auto full = shapes_->find(first.full_shape);
  whole.shape = first.full_shape.empty() || full == shapes_->end() ? nullptr : &*full;
  Series series = first;
  series.space = Space::whole;
  series.ranges.clear();
  whole.series = index_.add(series);
  merged.push_back(whole);
}

void RankMerger::take_one(const Turn& copies, std::vector<ReadRow>& merged) {
  const bool all_agree = std::ranges::all_of(
      copies, [&](const ReadRow* copy) { return are_copies(*copy, *copies.front()); });
  if (!all_agree) {
    for (const ReadRow* copy : copies) merged.push_back(*copy);
    return;
  }
  merged.push_back(*copies.front());
  merged.back().rank = -1;
}

RowsToMerge::Place& RowsToMerge::place_of(const ReadRow& row) {
  const Key key = key_of(row);
  if (next_ < places_.size() && key_of(places_[next_].row) == key) return places_[next_++];
  const auto [known, is_new] = by_key_.try_emplace(key, places_.size());
  if (is_new) places_.push_back({row, {}, false});
  next_ = known->second + 1;
  return places_[known->second];
}

void RowsToMerge::add(const ReadRow& row) {
  if (!merger_->has_copies_alone(row.series)) {
    rows_.push_back(row);
    return;
  }
  Place& place = place_of(row);
  const ReadRow& known = place.row;
  const bool is_copy = row.micro_step == known.micro_step && row.fate == known.fate &&
                       row.window == known.window && same_bits(row.loss_scale, known.loss_scale) &&
                       are_copies(row, known);
  if (is_copy) {
    place.copies.push_back({row.rank, row.seq});
  } else {
    place.has_others = true;
    rows_.push_back(row);
  }
}

void RowsToMerge::take(std::vector<ReadRow>& rows) {
  rows.insert(rows.end(), rows_.begin(), rows_.end());
  const auto same_rank = [](const Copy& a, const Copy& b) { return a.rank == b.rank; };
  for (Place& place : places_) {
    std::ranges::sort(place.copies);
    // A rank with two rows of a place takes turns. A single row, like equal ones of all ranks,
    // becomes that of the lowest rank.
    const bool is_one = !place.has_others &&
                        std::ranges::adjacent_find(place.copies, same_rank) == place.copies.end();
    for (const Copy& copy : std::span(place.copies).first(is_one ? 1 : place.copies.size())) {
      ReadRow& row = rows.emplace_back(place.row);
      row.rank = copy.rank;
      row.seq = copy.seq;
    }
  }
  *this = RowsToMerge(*merger_);
}

std::int64_t partial_rows(const RunRows& rows) {
  return std::count_if(rows.rows.begin(), rows.rows.end(),
                       [](const ReadRow& row) { return (row.flags & flag::kPartial) != 0; });
}

}  // namespace trainmon
