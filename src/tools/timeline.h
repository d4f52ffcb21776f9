// Which step each window of one rank and restart belongs to.
#pragma once

#include <map>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

class Timeline {
 public:
  // `start_steps` per optimizer, for windows before the first outcome.
  Timeline(const std::vector<RecordBatch>& batches, std::vector<std::int64_t> start_steps);

  // The outcome of a window; for one that has none (yet), fate unknown and the step that follows
  // from the nearest outcome before it, windows between counted as taken.
  Outcome at(std::int32_t optimizer, std::int64_t window) const;
  // All recorded outcomes.
  const std::map<std::int32_t, std::map<std::int64_t, Outcome>>& outcomes() const {
    return outcomes_;
  }

 private:
  std::map<std::int32_t, std::map<std::int64_t, Outcome>> outcomes_;  // optimizer -> window
  std::vector<std::int64_t> start_steps_;
};

}  // namespace trainmon
