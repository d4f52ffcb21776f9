// Lines that jump together in one step, as they never did before. docs/detection.md defines it.
#pragma once

#include <optional>

#include "answers/left_history.h"
#include "read/open_logs.h"
#include "trainmon/read.h"

namespace trainmon {

// Inputs, activations, their gradients and gradients of weights jump together where a training
// begins to compute otherwise. It looks at their root mean squares and at their zeros. It also
// looks at root mean squares over that of the line before, and over the mean of their kind. Of 16
// ranks at most, half a million rows of each. nullopt where there is no such step, and where
// `diagnosis` has a verdict. Reads the rows of those kinds once. Throws as read_run().
std::optional<LeftStep> jumping_lines(const OpenedRun& run, ReadOptions options,
                                      const Diagnosis& diagnosis);
// Adds it to what left its history, but where that is told near that step. It comes first where
// four times as many lines have it.
void add_jumping_lines(std::optional<LeftHistory>& found, const OpenedRun& run,
                       const ReadOptions& options, const Diagnosis& diagnosis);

}  // namespace trainmon
