// Ranks that hold the same weights, and whose activations part from one step on.
// docs/detection.md defines it.
#pragma once

#include <optional>

#include "answers/left_history.h"
#include "read/open_logs.h"
#include "trainmon/read.h"

namespace trainmon {

// Each rank is held against the one before it, and the first against the last. What the training
// does to both is gone in the difference. So a small change of one rank shows that no history
// tells. nullopt where there is none, and where `diagnosis` has a verdict. Reads the activations of
// the run once, and keeps half a million rows of three ranks at most. Throws as read_run().
std::optional<LeftStep> apart_ranks(const OpenedRun& run, ReadOptions options,
                                    const Diagnosis& diagnosis);
// Adds it to what left its history, but where that says the same rank near that step.
void add_apart_ranks(std::optional<LeftHistory>& found, const OpenedRun& run,
                     const ReadOptions& options, const Diagnosis& diagnosis);

}  // namespace trainmon
