// Activations that changed by little where gradients left their histories. docs/detection.md
// defines it.
#pragma once

#include <optional>
#include <vector>

#include "answers/left_history.h"
#include "read/open_logs.h"
#include "trainmon/read.h"

namespace trainmon {

// Where a step begins with gradients or a loss, no input and no activation left its history. The
// step is known then, and in this step means tell that no history does. These are inputs and
// activations of the rank that is named, whose means on either side of the step are apart. They are
// in the order of a step, at most kNamedLines - 1. Reads the rows of 64 steps. Throws as
// read_run().
std::vector<Series> small_steps(const OpenedRun& run, ReadOptions options, const LeftStep& left);
// Adds them where `found` is such a step.
void add_small_steps(std::optional<LeftHistory>& found, const OpenedRun& run,
                     const ReadOptions& options);

}  // namespace trainmon
