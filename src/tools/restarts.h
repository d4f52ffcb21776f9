// Which restart of a rank was the newest to go through a step of an optimizer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>

#include "base/timeline.h"

namespace trainmon {

class Restarts {
 public:
  // The outcomes of one rank and restart.
  void add(int rank, int restart, const Timeline& timeline) {
    for (const auto& [optimizer, windows] : timeline.outcomes()) {
      for (const auto& [window, outcome] : windows) add(rank, optimizer, outcome.step, restart);
    }
  }
  // For files that do not say before their rows whether a window after the last outcome has any.
  void add_with_open(int rank, int restart, const Timeline& timeline) {
    add(rank, restart, timeline);
    for (const auto& [optimizer, windows] : timeline.outcomes()) {
      if (windows.empty()) continue;
      add(rank, optimizer, timeline.at(optimizer, windows.rbegin()->first + 1).step, restart);
    }
  }
  void add(int rank, std::int32_t optimizer, std::int64_t step, int restart) {
    int& newest = newest_[{rank, optimizer, step}];
    newest = std::max(newest, restart);
  }
  // True for steps that nothing is known of.
  bool is_newest(int rank, std::int32_t optimizer, std::int64_t step, int restart) const {
    const auto found = newest_.find({rank, optimizer, step});
    return found == newest_.end() || found->second <= restart;
  }

 private:
  std::map<std::tuple<int, std::int32_t, std::int64_t>, int> newest_;
};

}  // namespace trainmon
