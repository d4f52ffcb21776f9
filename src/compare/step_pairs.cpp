// Steps of a training are alike. The pairs of the step before stay as long as the rows of both
// runs differ from it in values alone. Else rows of one place are brought together by sorting.
#include "compare/step_pairs.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "model/first_bad.h"

namespace trainmon {
StepPairs::StepPairs(const TensorTable& a, const TensorTable& b, BackwardOrder backward)
    : backward_(std::move(backward)) {
  a_.side.tensors = &a;
  b_.side.tensors = &b;
}

bool StepPairs::Identities::takes(const std::vector<ComparedRow>& others) const {
  if (rows.size() != others.size()) return false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    // Orders of execution are alike where all differ from the first one as before.
    if (rows[i].identity() != others[i].identity() ||
        rows[i].seq - rows[0].seq != others[i].seq - others[0].seq) {
      return false;
    }
  }
  return true;
}

void StepPairs::match(std::int64_t step, const std::vector<ComparedRow>& a, bool a_is_within,
                      const std::vector<ComparedRow>& b, bool b_is_within) {
  if (version_ == 0 || !a_.known.takes(a) || !b_.known.takes(b)) pair_anew(a, b);
  count(a_, step, a_is_within);
  count(b_, step, b_is_within);
}

void StepPairs::count(Side& side, std::int64_t step, bool is_within) {
  for (const auto& [tensor, rows] : side.lacking) {
    side.side.unmatched += rows;
    if (!is_within) continue;
    Lack& lack = side.side.lacks[tensor];
    if (lack.rows == 0) lack.first_step = step;
    lack.rows += rows;
  }
}

void StepPairs::number_tensors(Side& side) {
  const TensorTable& tensors = *side.side.tensors;
  for (auto i = static_cast<std::uint32_t>(side.numbers.size()); i < tensors.size(); ++i) {
    const auto next = static_cast<std::uint32_t>(by_match_.size());
    side.numbers.push_back(by_match_.try_emplace(tensors[i].match, next).first->second);
  }
}

void StepPairs::place_rows(Side& side, const std::vector<ComparedRow>& rows) {
  const TensorTable& tensors = *side.side.tensors;
  const auto sums = [&](const ComparedRow& row) {
    return tensors[row.tensor].kind == kind::kGradUnreduced;
  };
  const auto of_step = [](const ComparedRow& row) {
    return std::tuple(row.tensor, row.rank, row.attempt);
  };
  // Of gradients that add up, the last backward.
  std::map<std::tuple<std::uint32_t, std::int32_t, std::int32_t>, std::int32_t> last;
  side.side.backwards = 0;
  for (const ComparedRow& row : rows) {
    side.side.backwards = std::max(side.side.backwards, row.accum + 1);
    if (!sums(row)) continue;
    std::int32_t& known = last.try_emplace(of_step(row), row.accum).first->second;
    known = std::max(known, row.accum);
  }
  side.places.clear();
  for (const ComparedRow& row : rows) {
    const int moment = moment_of(tensors[row.tensor].kind);
    side.places.push_back(sums(row)                                 ? row.accum - last[of_step(row)]
                          : moment >= kReducedMoment || moment == 0 ? 0
                                                                    : row.accum);
  }
}

void StepPairs::pair_anew(const std::vector<ComparedRow>& a, const std::vector<ComparedRow>& b) {
  ++version_;
  a_.known.rows = a;
  b_.known.rows = b;
  number_tensors(a_);
  number_tensors(b_);
  // As A's rows began; what A has no row of comes last.
  std::vector<std::uint32_t> order(by_match_.size(), std::numeric_limits<std::uint32_t>::max());
  std::uint32_t next = 0;
  for (const std::uint32_t tensor : a_.side.tensors->in_order()) {
    std::uint32_t& known = order[a_.numbers[tensor]];
    known = std::min(known, next++);
  }
  for (std::uint32_t& place : order) {
    if (place == std::numeric_limits<std::uint32_t>::max()) place = next++;
  }
  std::vector<Entry> entries;
  for (Side* const side : {&a_, &b_}) {
    place_rows(*side, side->known.rows);
    side->lacking.clear();
    for (std::uint32_t i = 0; i < side->known.rows.size(); ++i) {
      const ComparedRow& row = side->known.rows[i];
      entries.push_back({order[side->numbers[row.tensor]], i, row.attempt, side->places[i],
                         row.call, row.rank, side == &b_, row.seq});
    }
  }
  std::ranges::sort(entries, {}, [](const Entry& one) {
    return std::tuple(one.where(), one.is_b, one.rank, one.seq, one.row);
  });
  pairs_.clear();
  for (auto first = entries.begin(); first != entries.end();) {
    const auto last = std::find_if(first, entries.end(),
                                   [&](const Entry& one) { return one.where() != first->where(); });
    match(Group(first, last));
    first = last;
  }
  sort_as_executed();
}

void StepPairs::add_pair(std::uint32_t a, std::uint32_t b) {
  const ComparedRow &of_a = a_.known.rows[a], &of_b = b_.known.rows[b];
  pairs_.push_back({a, b, of_a.tensor, of_b.rank < 0 ? of_a.rank : of_b.rank, a_.places[a]});
}

// A row of each run, of one rank or merged: nearly every place.
bool StepPairs::match_two(Group group) {
  if (group.size() != 2 || group[0].is_b || !group[1].is_b) return false;
  if (group[0].rank != group[1].rank && group[0].rank >= 0 && group[1].rank >= 0) return false;
  add_pair(group[0].row, group[1].row);
  return true;
}

void StepPairs::match(Group group) {
  if (match_two(group)) return;
  RankRows of_a, of_b;
  for (const Entry& entry : group) (entry.is_b ? of_b : of_a)[entry.rank].push_back(entry.row);
  std::size_t used_a = 0, used_b = 0;
  const auto both = [&](const auto& rows_a, const auto& rows_b) {
    const std::size_t count = std::min(rows_a.size(), rows_b.size());
    for (std::size_t i = 0; i < count; ++i) add_pair(rows_a[i], rows_b[i]);
    return count;
  };
  std::size_t merged_a = 0, merged_b = 0;  // matched by several ranks, used once
  for (const auto& [rank, rows] : of_a) {
    if (const auto same = of_b.find(rank); same != of_b.end()) {
      const std::size_t count = both(rows, same->second);
      used_a += count;
      used_b += count;
    } else if (const auto all = of_b.find(-1); all != of_b.end()) {
      const std::size_t count = both(rows, all->second);
      used_a += count;
      merged_b = std::max(merged_b, of_a.contains(-1) ? 0 : count);
    }
  }
  for (const auto& [rank, rows] : of_b) {
    const auto all = of_a.find(-1);
    if (of_a.contains(rank) || all == of_a.end()) continue;
    const std::size_t count = both(all->second, rows);
    used_b += count;
    merged_a = std::max(merged_a, of_b.contains(-1) ? 0 : count);
  }
  used_a += merged_a;
  used_b += merged_b;
  for (const auto& [side, used, rows] :
       {std::tuple(&a_, used_a, &of_a), std::tuple(&b_, used_b, &of_b)}) {
    std::size_t all = 0;
    for (const auto& [rank, list] : *rows) all += list.size();
    if (all <= used) continue;
    side->lacking.emplace_back(side->known.rows[rows->begin()->second[0]].tensor,
                               static_cast<std::int64_t>(all - used));
  }
}

void StepPairs::sort_as_executed() {
  const auto order = [&](const RowPair& pair) {
    const ComparedRow& row = a_.known.rows[pair.a];
    const int moment = moment_of((*a_.side.tensors)[pair.tensor].kind);
    std::uint64_t backward = 0;
    if (moment == kReducedMoment) {
      const auto known = backward_.find(pair.tensor);
      backward =
          known == backward_.end() ? std::numeric_limits<std::uint64_t>::max() : known->second;
    }
    return std::tuple(row.attempt, moment == 0 ? -1 : row.accum, moment, backward,
                      moment == kReducedMoment ? ~row.seq : row.seq, pair.rank);
  };
  std::ranges::stable_sort(pairs_, {}, order);
}

}  // namespace trainmon
