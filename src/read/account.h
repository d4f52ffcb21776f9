// What each rank and restart of a run produced, and where it went.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "read/log.h"
#include "trainmon/health.h"
#include "trainmon/read.h"

namespace trainmon {

struct OpenedRun;

// What a monitor with a budget chose, as it last said.
struct RankBudget {
  double budget = 0.0;          // share of the step's time
  std::optional<double> share;  // of it that is used, as measured; unset: too few steps so far
  std::int64_t part = 1;        // of one step in `every`, `part` in `of` are recorded
  std::int64_t of = 1;
  std::int64_t every = 1;
  std::int64_t since_step = 0;
  bool out_of_reach = false;  // recording as little as possible is over budget
};

// What became of the process that wrote a rank and restart.
enum class WriterState : std::uint8_t {
  closed,   // it stopped in order
  running,  // it is alive on this machine
  gone,     // it is not, and did not stop in order: killed, or it could not write at the end
  unknown,  // it did not stop in order, and another machine must be asked
};

// What one rank and restart produced, and where it went.
struct RankAccount {
  int rank = 0;
  int restart = 0;
  bool is_newest = true;  // no newer restart of this rank is there
  std::filesystem::path directory;
  std::string run_id;
  std::string started;
  std::string host;
  bool has_health = false;  // health.json was there and readable
  bool closed = false;      // stopped in order
  WriterState writer = WriterState::unknown;
  std::optional<std::int64_t> last_step;  // of the clock, of which the log has anything
  std::int64_t last_time_ns = 0;          // of the newest batch, since 1970; 0: none
  Health health;
  std::optional<RankBudget> budget;
  std::int64_t log_rows = 0;  // rows that can be read from the log
  std::int64_t log_files = 0;
  std::int64_t log_bytes = 0;
  std::int64_t torn_tails = 0;
  std::vector<std::string> covered;
  std::map<std::string, std::string> not_covered;  // what -> why
  // Everything that does not add up, as sentences; empty when all does. For a run that is still
  // written or was killed, only what cannot be explained by that.
  std::vector<std::string> faults;
  std::vector<std::string> incomplete;  // as RunRows has it
};
struct Account {
  std::vector<RankAccount> ranks;  // by rank, restart
  MissingRanks missing;
  std::vector<std::string> earlier;  // as RunRows has it
  std::vector<std::string> skipped;  // as RunRows has it
  std::vector<std::string> killed;   // as RunRows has it
  std::vector<std::string> expired;  // as RunRows has it
  std::vector<Damage> damage;
  std::int64_t rows() const;
};
// Decodes every value on so many threads (useful_threads()), whose number changes nothing. Throws
// std::runtime_error as read_run() does.
Account account(const std::filesystem::path& run, unsigned threads = 1);
// Of logs that are open, those of all ranks. Rows are not decoded: what is damaged there is not
// told.
Account account(const OpenedRun& run);

// Rows that the sink dropped, for any reason.
std::int64_t rows_dropped(const SinkHealth& sink);
// Rows that were written and that the log itself, or retention.json, says are gone.
std::int64_t rows_deleted(const LogContents& log);

}  // namespace trainmon
