// The logs of a run opened for reading, several at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/timeline.h"
#include "read/account.h"
#include "read/log_bounds.h"
#include "read/log_index.h"
#include "read/run_layout.h"
#include "trainmon/read.h"

namespace trainmon {

// The log of one rank and restart, and what its files say beside it.
struct OpenedLog {
  RankDirectory place;
  std::optional<StoredHealth> health;
  RunFacts facts;
  std::shared_ptr<const LogIndex> log;  // nullptr where the place cannot be read
  Timeline timeline;
  std::vector<Damage> damage;  // of health.json and run.json
};

// So many threads, or fewer: whoever looks through a log has a segment of it in memory. At least
// one; together they keep 128 MB at most, or one segment.
unsigned threads_within_memory(const std::vector<RankDirectory>& places, unsigned threads);
// Whether an index is left beside a large segment that has none (index_file.h).
enum class Indexes : std::uint8_t { left, only_used };

// On so many threads at most; the bounds of frames are those of `allowance`. Its series are those
// of `shared`, where that has equal ones; nullptr: its own.
OpenedLog open_log(const RankDirectory& place, Allowance& allowance, unsigned threads,
                   Indexes indexes, SharedSeries* shared = nullptr);
// The same of each place, in their order. No more threads than keep 128 MB of segments in memory,
// or one. What is damage does not depend on their number.
std::vector<OpenedLog> open_logs(const std::vector<RankDirectory>& places, Allowance& allowance,
                                 unsigned threads, Indexes indexes);

// The logs of a run as they are at one moment, for all who read it then. Copies share the logs.
struct OpenedRun {
  // Opens the logs of the ranks that `options` ask for. Throws as rank_directories().
  OpenedRun(const std::filesystem::path& run, const ReadOptions& options,
            Indexes indexes = Indexes::left);
  // As if one restart were the only one. Places that cannot be read are of every restart.
  OpenedRun of_restart(int restart) const;

  std::filesystem::path path;
  Indexes indexes = Indexes::left;
  std::vector<RankDirectory> directories;  // of all ranks
  std::shared_ptr<Allowance> allowance;    // which the logs refer to
  std::vector<OpenedLog> logs;             // of the ranks asked for, in the order of directories
  std::vector<std::string> other_kinds;    // of logs that of_restart() left out
};

}  // namespace trainmon
