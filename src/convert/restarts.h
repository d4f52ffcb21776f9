// Which restart of a rank was the newest to go through a step, for sources that keep the outcomes
// of each restart in a file of their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>

#include "base/timeline.h"

namespace trainmon {

class Restarts {
 public:
  // Of one rank and restart; the open window after its last outcome counts, too.
  void add(int rank, int restart, const Timeline& timeline) {
    for (const auto& [optimizer, windows] : timeline.outcomes()) {
      for (const auto& [window, outcome] : windows) note(rank, optimizer, outcome.step, restart);
      if (windows.empty()) continue;
      note(rank, optimizer, timeline.at(optimizer, windows.rbegin()->first + 1).step, restart);
    }
  }
  bool is_newest(int rank, std::int32_t optimizer, std::int64_t step, int restart) const {
    const auto found = newest_.find({rank, optimizer, step});
    return found == newest_.end() || found->second <= restart;
  }

 private:
  void note(int rank, std::int32_t optimizer, std::int64_t step, int restart) {
    int& newest = newest_[{rank, optimizer, step}];
    newest = std::max(newest, restart);
  }
  std::map<std::tuple<int, std::int32_t, std::int64_t>, int> newest_;
};

}  // namespace trainmon
