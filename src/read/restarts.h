// Which restart was the newest to go through a step of an optimizer. It is that of a rank. Where
// the run went on with fewer processes, it is that of those that are left.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/number_set.h"
#include "model/timeline.h"

namespace trainmon {

class Restarts {
 public:
  // The outcomes of one rank and restart.
  void add(int rank, int restart, const Timeline& timeline) {
    timeline.for_each_optimizer([&](std::int32_t optimizer, const Timeline::Runs& runs) {
      for (const auto& [window, run] : runs) {
        for (std::int64_t i = 0; i < run.windows; ++i) {
          add(rank, optimizer, run.at(window + i).step, restart);
        }
      }
    });
  }
  void add(int rank, std::int32_t optimizer, std::int64_t step, int restart) {
    steps_[{rank, optimizer}][restart].insert(step);
    steps_of_any_rank_[optimizer][restart].insert(step);
  }
  // How many processes a restart had; 0: unknown.
  void set_world_size(int restart, int world_size) {
    int& known = world_size_[restart];
    known = std::max(known, world_size);
  }
  // Nothing is known of any step.
  bool empty() const { return steps_.empty(); }
  // True for steps that nothing is known of.
  bool is_newest(int rank, std::int32_t optimizer, std::int64_t step, int restart) const {
    const auto of_rank = steps_.find({rank, optimizer});
    if (of_rank != steps_.end() && newest_after(of_rank->second, step, restart) > restart) {
      return false;
    }
    const auto of_any_rank = steps_of_any_rank_.find(optimizer);
    if (of_any_rank == steps_of_any_rank_.end()) return true;
    const int newest = newest_after(of_any_rank->second, step, restart);
    if (newest == restart) return true;
    const auto world_size = world_size_.find(newest);
    return world_size == world_size_.end() || world_size->second == 0 || rank < world_size->second;
  }
  // The first step from `step` on that this restart has and that no newer one went through again.
  std::optional<std::int64_t> shown_from(int rank, std::int32_t optimizer, std::int64_t step,
                                         int restart) const {
    const auto of_rank = steps_.find({rank, optimizer});
    if (of_rank == steps_.end()) return std::nullopt;
    const auto own = of_rank->second.find(restart);
    if (own == of_rank->second.end()) return std::nullopt;
    auto next = own->second.from(step);
    while (next && !is_newest(rank, optimizer, *next, restart)) next = own->second.from(*next + 1);
    return next;
  }

 private:
  using Steps = std::map<int, NumberSet, std::greater<>>;  // by restart, the newest one first
  // The newest restart after `restart` that has the step; `restart` where there is none.
  static int newest_after(const Steps& steps, std::int64_t step, int restart) {
    for (const auto& [one, of_restart] : steps) {
      if (one <= restart) break;
      if (of_restart.contains(step)) return one;
    }
    return restart;
  }

  std::map<std::pair<int, std::int32_t>, Steps> steps_;  // by rank and optimizer
  std::map<std::int32_t, Steps> steps_of_any_rank_;      // by optimizer
  std::map<int, int> world_size_;                        // by restart
};

}  // namespace trainmon
