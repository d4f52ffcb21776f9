// Where rows are missing, as gaps say that some are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "report/gather.h"
#include "trainmon/read.h"

namespace trainmon::page {

// Finds between which steps the rows of a rank's gaps were lost, from the rows that are there.
class LostRows {
 public:
  LostRows(const std::vector<ReadGap>& gaps, int rank) {
    for (const ReadGap& one : gaps) {
      if (one.rank == rank) of_[{one.rank, one.restart}].push_back({one, kNone, kNone});
    }
    for (auto& [place, list] : of_) {
      std::ranges::sort(list, {}, [](const Place& one) { return one.gap.gap.first_seq; });
    }
  }
  void look_at(const ReadRow& row) {
    const auto found = of_.find({row.rank, row.restart});
    if (found == of_.end()) return;
    auto& list = found->second;
    const auto after = std::ranges::upper_bound(
        list, row.seq, {}, [](const Place& one) { return one.gap.gap.first_seq; });
    if (after != list.end()) after->before = std::max(after->before, row.step);
    if (after == list.begin()) return;
    std::int64_t& next = std::prev(after)->after;
    next = next == kNone ? row.step : std::min(next, row.step);
  }
  std::vector<Loss> losses() const {
    std::vector<Loss> all;
    for (const auto& [place, list] : of_) {
      std::int64_t before = kNone;
      for (std::size_t i = 0; i < list.size(); ++i) {
        before = std::max(before, list[i].before);
        std::int64_t after = kNone;
        for (std::size_t j = i; j < list.size() && after == kNone; ++j) after = list[j].after;
        all.push_back({place.first, place.second, before == kNone ? after : before,
                       after == kNone ? before : after, list[i].gap.gap.rows,
                       list[i].gap.gap.reason});
      }
    }
    return all;
  }

 private:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();
  struct Place {
    ReadGap gap;
    std::int64_t before;  // the last step of a row before it
    std::int64_t after;   // the first step of a row behind it
  };
  std::map<std::pair<int, int>, std::vector<Place>> of_;
};

}  // namespace trainmon::page
