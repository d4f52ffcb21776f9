// Why the record that a sink other than the log left is not complete.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "read/run_layout.h"
#include "trainmon/read.h"

namespace trainmon {

// By run.json and health.json of the ranks that are asked for; by `gaps`, where files stand alone.
// Sentences that name the rank, as RunRows::incomplete.
std::vector<std::string> incomplete_run(const std::vector<RankDirectory>& places,
                                        const std::function<bool(int)>& takes_rank,
                                        std::string_view sink, const std::vector<ReadGap>& gaps);

}  // namespace trainmon
