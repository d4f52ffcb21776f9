// Which restart was the newest to go through a step of an optimizer. It is that of a rank. Where
// the run went on with fewer processes, it is that of those that are left.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "model/timeline.h"

namespace trainmon {

class Restarts {
 public:
  // The outcomes of one rank and restart.
  void add(int rank, int restart, const Timeline& timeline) {
    for (const auto& [optimizer, windows] : timeline.outcomes()) {
      for (const auto& [window, outcome] : windows) add(rank, optimizer, outcome.step, restart);
    }
  }
  void add(int rank, std::int32_t optimizer, std::int64_t step, int restart) {
    int& newest = newest_[{rank, optimizer, step}];
    newest = std::max(newest, restart);
    int& of_any_rank = newest_of_any_rank_[{optimizer, step}];
    of_any_rank = std::max(of_any_rank, restart);
  }
  // How many processes a restart had; 0: unknown.
  void set_world_size(int restart, int world_size) {
    int& known = world_size_[restart];
    known = std::max(known, world_size);
  }
  // Nothing is known of any step.
  bool empty() const { return newest_.empty(); }
  // True for steps that nothing is known of.
  bool is_newest(int rank, std::int32_t optimizer, std::int64_t step, int restart) const {
    const auto found = newest_.find({rank, optimizer, step});
    if (found != newest_.end() && found->second > restart) return false;
    const auto of_any_rank = newest_of_any_rank_.find({optimizer, step});
    if (of_any_rank == newest_of_any_rank_.end() || of_any_rank->second <= restart) return true;
    const auto world_size = world_size_.find(of_any_rank->second);
    return world_size == world_size_.end() || world_size->second == 0 || rank < world_size->second;
  }

 private:
  std::map<std::tuple<int, std::int32_t, std::int64_t>, int> newest_;
  std::map<std::pair<std::int32_t, std::int64_t>, int> newest_of_any_rank_;
  std::map<int, int> world_size_;  // by restart
};

}  // namespace trainmon
