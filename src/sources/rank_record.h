// What stands beside the files that a sink other than the log left of a rank and restart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "read/run_layout.h"
#include "sources/row_account.h"
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
// Rows that `sink` wrote as health.json says; 0 where it does not say, or the run is not closed.
std::int64_t rows_claimed(const RankRecord& record, std::string_view sink);
// Rejects the rows that are claimed and not found: a table that ends early shows nowhere else.
// `what` holds them: "the files hold".
void hold_against_health(const std::filesystem::path& place, std::string_view what,
                         std::int64_t claimed, std::int64_t found, RowAccount& account);
// Adds to `incomplete` what the gaps of files say that stand alone.
void add_gaps(const std::vector<ReadGap>& gaps, std::vector<std::string>& incomplete);

}  // namespace trainmon
