// From which step on there are rows, where the writer has deleted older segments on purpose.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "read/run_layout.h"

namespace trainmon {

// As RunRows::expired has it, of the ranks that are taken, after those of repaired.h. Reads the
// beginnings of logs, only of runs of which something was deleted. `directories` by rank and
// restart.
std::vector<std::string> expired_sentences(const std::vector<RankDirectory>& directories,
                                           const std::function<bool(int)>& takes_rank);

}  // namespace trainmon
