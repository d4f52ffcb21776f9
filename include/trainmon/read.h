// Offline: reads a run back, every rank and restart of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainmon/read_row.h"
#include "trainmon/record.h"

namespace trainmon {

// Damage met while reading, never silent: bytes that could not be used and where.
struct Damage {
  std::filesystem::path file;
  std::int64_t offset = 0;
  std::string what;
};

// Which rows to read. Empty lists mean all.
struct ReadOptions {
  std::vector<std::string> kinds;    // kinds or groups: grads weights moments activations
  std::vector<std::string> include;  // name patterns of config.h
  std::vector<std::string> exclude;
  std::vector<int> ranks;
  std::optional<std::int64_t> first_step;  // inclusive
  std::optional<std::int64_t> last_step;   // inclusive
  bool all_restarts = false;               // false: the newest restart of a step that exists twice
  bool merged = false;    // union rows of all ranks merged, identical rows taken once
  bool only_bad = false;  // of the rows, those with a NaN or an infinity
  unsigned threads = 0;   // that read; 0: as many as the machine has, at most 8
  // Of the states of rows, what derive() needs for these is read, unless rows are merged.
  std::optional<std::vector<Stat>> stats;  // nullopt: all
};

// Whether a NaN or an infinity is among the row's elements.
bool is_bad(const ReadRow& row);

struct ReadScalar {
  std::int32_t restart = 0;
  std::int32_t rank = 0;
  std::int64_t step = 0;
  std::string name;
  double value = 0.0;
  std::uint64_t seq = 0;      // 0: the source was not asked
  std::int32_t attempt = -1;  // at the step; -1: the source does not say
};

// A text or a histogram (docs/formats.md) at a place of its own.
struct ReadPayload {
  std::int32_t restart = 0;
  std::int32_t rank = 0;
  std::uint32_t series = 0;  // index into RunRows::series
  std::int64_t step = 0;
  std::int32_t attempt = 0;
  Fate fate = Fate::unknown;
  Payload payload;
};

struct ReadAlert {
  std::int32_t restart = 0;
  std::int32_t rank = 0;
  Alert alert;  // key.series is an index into RunRows::series; repeats joined, with their count
};

struct ReadGap {
  std::int32_t restart = 0;
  std::int32_t rank = 0;
  Gap gap;
};

// Ranks that were to record (world_size and config.ranks of run.json) and have no directory, in any
// restart: deleted, not copied along, or not there yet.
struct MissingRanks {
  std::vector<int> ranks;  // ascending
  int world_size = 0;      // of how many; 0 where no run.json says
};
// "rank 1 of 2 is missing", "ranks 1 4-7 of 8 are missing"; empty when none is.
std::string missing_text(const MissingRanks& missing);
// Ascending ranks as people write them: "0-3 7".
std::string ranks_text(const std::vector<int>& ranks);

struct RunRows {
  std::vector<Series> series;
  // Those of rows, which point here.
  std::shared_ptr<std::set<Shape>> shapes = std::make_shared<std::set<Shape>>();
  std::vector<ReadRow> rows;        // by restart, step, attempt, rank, seq
  std::vector<ReadScalar> scalars;  // by restart, step, rank
  // By step, restart, rank; of steps before the first one asked for, the last of each value.
  std::vector<ReadDeclared> declared;
  std::vector<ReadPayload> payloads;  // by restart, step, attempt, rank, seq
  std::vector<ReadAlert> alerts;
  std::vector<ReadGap> gaps;
  std::vector<std::string> kinds;  // every kind of the ranks read, selected or not, ascending
  std::vector<int> ranks;          // every rank the run has, ascending
  // Of patterns of `include` that take no name of the run, those that would behind "**.".
  std::vector<std::string> suggested;
  MissingRanks missing;        // of the ranks selected
  std::vector<Damage> damage;  // a torn tail of a killed run is not damage; rows that a run
                               // stopped in order has written and the log lacks are
  std::int64_t torn_tails = 0;
  bool all_restarts = false;  // rows of steps that a later restart went through again, too
  int newest_restart = 0;     // of the ranks read
  // What restarts before the newest found that is not finite, a sentence each.
  std::vector<std::string> earlier;
  // Ranks whose last tries of a step were all skipped, three or more, a sentence each.
  std::vector<std::string> skipped;
  // Restarts that were killed and that a newer one followed, a sentence each.
  std::vector<std::string> killed;
  // From which step on there are rows, where older ones were deleted to keep to retention_mb and
  // retention_days; and what a repaired run has lost. A sentence each, or none.
  std::vector<std::string> expired;
  // Why the record of the ranks read is not complete, a sentence each: nothing recorded, rows
  // dropped, a process that is gone without having stopped.
  std::vector<std::string> incomplete;
};

// Reads every rank and restart under `run` (also of a run being written). A window whose outcome is
// not known (yet) has fate unknown and the step that follows from the window before it.
// Merging: parts of one whole are merged, each distinct part once. Identical values are taken once
// if every rank agrees to the bit, and left per rank if not. The rest stays per rank. Several
// backwards through one forward give rows of one rank and part that differ in seq alone. They are
// merged by their order, the k-th of each with the k-th of the others. They are left per rank where
// not all have as many. A merged value whose count is not the full tensor's has the flag partial.
// Throws std::runtime_error when the directory holds no run and std::invalid_argument for a kind
// that neither the run nor trainmon knows.
RunRows read_run(const std::filesystem::path& run, const ReadOptions& options = {});

}  // namespace trainmon
