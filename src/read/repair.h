// A copy of a run that readers take without a complaint. It has all records that they could use of
// the damaged one. An account says what is lost.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "read/account.h"
#include "trainmon/read.h"

namespace trainmon {

// One rank and restart.
struct RepairedRank {
  int rank = 0;
  int restart = 0;
  WriterState was = WriterState::unknown;
  std::int64_t segments = 0;  // that were written
  std::int64_t batches = 0;
  std::int64_t rows = 0;                    // payloads among them
  std::optional<std::int64_t> rows_lost;    // that health.json counts and the log lacks; unset: it
                                            // does not say
  std::int64_t torn_tails = 0;              // writes that nobody finished, of a killed run
  std::vector<Damage> damage;               // all that readers complain of
  std::vector<std::filesystem::path> left;  // files that are not copied: of other sinks
  // Whether the copy differs in more than its form.
  bool is_changed() const { return !damage.empty() || was != WriterState::closed; }
};
struct Repair {
  std::vector<RepairedRank> ranks;  // by rank, restart
  std::vector<Damage> unreadable;   // folders of which nothing is copied
};

// Writes into the folder `to`, which is made and must be empty. `run` is read alone. Of each rank
// it has the log, run.json, health.json, retention.json and flight recorders, and repair.json where
// something was wrong; control.json of the run. Memory is that of some segments. `progress` gets
// bytes done and in all; false ends it with std::runtime_error. Throws that also as
// rank_directories(), where a process still writes the run, and in a build without zstd; SinkError
// where `to` cannot be written.
Repair repair(const std::filesystem::path& run, const std::filesystem::path& to,
              const std::function<bool(std::int64_t, std::int64_t)>& progress);

}  // namespace trainmon
