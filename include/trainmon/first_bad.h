// Where a run first went wrong.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainmon/read.h"

namespace trainmon {

// Where the run first went wrong: the non-finite row that comes first. The order is by step (with
// all_restarts, then by restart), by attempt, by moment of the step, then by seq. The moments are
// weights before the step, then by accum forward and backward, then reduced gradients, optimizer
// state, weights after the step. Gradients of windows that were skipped count only when nothing
// else is bad. A loss scaler makes and drops such steps as its way of working. An input counts only
// where something else of its step is not finite: models may be given NaN for what is missing. So
// does a logged loss whose gradients are recorded, and one that is finite again. What a run says
// while it goes on is the same (model/first_bad.h).
struct FirstBad {
  ReadRow row;
  Series series;
  std::vector<int> ranks;  // every rank with a bad row at that same place, ascending
  // Where it came from, where that is not this tensor: "the forward or the loss". Then why that is
  // so, and what is known of the module.
  std::string came_from;
  std::string why;
  std::string module;
  // Declared values of that rank that changed in the ten steps before, a sentence each.
  // One is "lr of group 0 changed from 0.1 to 100 at step 5".
  std::vector<std::string> changes;
  // The step before has no row: what went wrong may have begun in a step that was not recorded.
  bool follows_gap = false;
  // It is a gradient of a try that was left out, and the training goes on with the same step.
  bool was_left_out = false;
  // It is an input or an activation, and what comes behind the forward of its step is recorded and
  // finite.
  bool is_filled_in = false;
  struct OfRestart {
    ReadRow row;
    Series series;
  };
  std::vector<OfRestart> restarts;  // the first of each restart that has one, ascending
};
std::optional<FirstBad> first_bad(const RunRows& rows);

// The same over a run on disk, all restarts of it, whose rows are looked at one by one and not
// kept. Throws as read_run().
struct FirstBadOfRun {
  RunRows run;  // without rows and payloads
  std::optional<FirstBad> found;
  // What came before it, where the model filled that in.
  std::optional<FirstBad> filled_in;
  // Losses that are not finite, after they were, though the step was: the first of each name. They
  // are finite again later, or the gradients of their step are.
  std::vector<ReadScalar> passed_losses;
  std::int64_t rows = 0;     // that were looked at
  std::int64_t partial = 0;  // rows that were merged and lack elements
};
FirstBadOfRun first_bad(const std::filesystem::path& run, ReadOptions options);

}  // namespace trainmon
