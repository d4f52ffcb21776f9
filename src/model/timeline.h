// Which step each window of one rank and restart belongs to. Readers know all outcomes; live
// sinks learn them as they come.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

class Timeline {
 public:
  // `start_steps` per optimizer, for windows before the first outcome.
  explicit Timeline(std::vector<std::int64_t> start_steps = {});

  // Takes in the outcomes of a batch.
  void add(const RecordBatch& batch);
  // Another start, as long as no outcome is known.
  void set_start_steps(std::vector<std::int64_t> steps) { start_steps_ = std::move(steps); }
  // Forgets all but the newest outcomes of each optimizer.
  void keep_last(std::size_t windows);

  // The outcome of a window. One that has none (yet) has fate unknown and the step that follows
  // from the nearest outcome before it; windows between count as taken. Before the first outcome
  // (of a log whose beginning was deleted) it is at most the step of that one.
  Outcome at(std::int32_t optimizer, std::int64_t window) const;
  // "the last 9 of 14 tries of a step were skipped, from step 5 on"; empty for fewer than three.
  std::string skips_at_end() const;
  // All recorded outcomes.
  const std::map<std::int32_t, std::map<std::int64_t, Outcome>>& outcomes() const {
    return outcomes_;
  }

 private:
  std::map<std::int32_t, std::map<std::int64_t, Outcome>> outcomes_;  // optimizer -> window
  std::vector<std::int64_t> start_steps_;
};

}  // namespace trainmon
