// What stands beside the files that a sink other than the log left of a rank and restart.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "read/run_layout.h"
#include "trainmon/read.h"

namespace trainmon {

struct RankRecord {
  RunFacts facts;                      // of run.json
  std::optional<StoredHealth> stored;  // health.json
  std::vector<Damage> damage;          // of these two
};
// Adds to `incomplete` why the files of `sink` do not hold all: sentences that name the rank, as
// RunRows::incomplete.
RankRecord read_rank_record(const std::vector<RankDirectory>& places, std::size_t index,
                            std::string_view sink, std::vector<std::string>& incomplete);
// The same of files that stand alone: what their gaps say.
void add_gaps(const std::vector<ReadGap>& gaps, std::vector<std::string>& incomplete);

}  // namespace trainmon
