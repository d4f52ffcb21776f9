// Which step each window of one rank and restart belongs to. Readers know all outcomes; live
// sinks learn them as they come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

class Timeline {
 public:
  // Windows that follow one another, each taken at the step after that of the one before; any other
  // window alone. Most of a training is one.
  struct Run {
    Outcome first;
    std::int64_t windows = 1;
    bool holds(std::int64_t window) const;
    // Of a window that it holds.
    Outcome at(std::int64_t window) const;
    Outcome last() const;
  };
  using Runs = std::map<std::int64_t, Run>;  // by the first window

  // `start_steps` per optimizer, for windows before the first outcome.
  explicit Timeline(std::vector<std::int64_t> start_steps = {});

  // Takes in the outcomes of a batch.
  void add(const RecordBatch& batch);
  // Another start, as long as no outcome is asked for.
  void set_start_steps(std::vector<std::int64_t> steps) { start_steps_ = std::move(steps); }
  // Forgets all but the newest outcomes of each optimizer.
  void keep_last(std::size_t windows);

  // The outcome of a window. One that has none (yet) has fate unknown and the step that follows
  // from the nearest outcome before it; windows between count as taken. Before the first outcome
  // (of a log whose beginning was deleted) it is at most the step of that one.
  Outcome at(std::int32_t optimizer, std::int64_t window) const;
  // The same if it was recorded, else nullopt.
  std::optional<Outcome> recorded(std::int32_t optimizer, std::int64_t window) const;
  // The newest window of an optimizer that has an outcome; nullopt: none has.
  std::optional<std::int64_t> newest_window(std::int32_t optimizer) const;
  // The most windows of an optimizer that were skipped one after another.
  std::int64_t most_skipped_in_a_row() const;
  // "the last 9 of 14 tries of a step were skipped, from step 5 on"; empty for fewer than three.
  std::string skips_at_end() const;
  // Calls use(optimizer, runs) for each optimizer that has an outcome, ascending.
  template <typename Use>
  void for_each_optimizer(const Use& use) const {
    for (const auto& [optimizer, known] : known_) use(optimizer, known.runs);
  }

 private:
  struct Known {
    Runs runs;
    std::size_t windows = 0;  // of all runs
  };
  void add(const Outcome& outcome);

  std::map<std::int32_t, Known> known_;  // by optimizer
  std::vector<std::int64_t> start_steps_;
};

}  // namespace trainmon
