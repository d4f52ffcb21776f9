// Which ranks and restarts a run directory holds, and what their run.json and health.json say.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/process.h"
#include "read/account.h"
#include "trainmon/read.h"

namespace trainmon {

struct RankDirectory {
  int rank = 0;
  int restart = 0;
  std::filesystem::path path;  // RUN/rank_00000/restart_0000
  std::error_code error;       // set: RUN/rank_00000 is all that is known, it cannot be read
};

// By rank, then restart. Throws std::runtime_error naming what is there instead when there is
// none. Throws std::system_error naming the directory when the run, or every rank of it, cannot
// be read.
std::vector<RankDirectory> rank_directories(const std::filesystem::path& run);

// Of the ranks not asked for, the starts of fewer processes than the ranks asked for need. They
// may have gone through steps of those again, and only their own ranks know.
std::vector<RankDirectory> starts_without(const std::vector<RankDirectory>& directories,
                                          const std::function<bool(int)>& is_asked_for);

// Whether `directory` is a run: it has a rank_*/restart_* directory.
bool is_run(const std::filesystem::path& directory);
// The runs one level below `parent`, ascending; none where it cannot be read.
std::vector<std::filesystem::path> runs_in(const std::filesystem::path& parent);

// Whether no later restart of the same rank is among them.
bool is_newest(const std::vector<RankDirectory>& directories, std::size_t index);
// Nor any of fewer processes, which has no such rank. `directories`: by rank, then restart.
bool is_last(const std::vector<RankDirectory>& directories, std::size_t index);

// The part of run.json that readers need. Missing or odd entries keep these defaults.
struct RunFacts {
  std::string run_id;
  ProcessFacts process;
  std::vector<std::int64_t> start_steps;  // per optimizer
  std::optional<std::int64_t> grad_acc_steps;
  int clock = 0;
  int world_size = 0;       // 0: unknown
  std::vector<int> ranks;   // of the configuration: those that record, empty for all
  bool has_checks = false;  // of the configuration
  std::vector<std::string> covered;
  std::map<std::string, std::string> not_covered;
  // By optimizer, the class of torch or MindSpore whose steps it takes; "" is one of its own.
  std::vector<std::string> formulas;
  std::optional<RankBudget> budget;
  std::int64_t control_since = -1;  // the first step of the newest change by control.json; -1: none
};
// A missing or unreadable file is damage.
RunFacts read_run_json(const RankDirectory& directory, std::vector<Damage>& damage);

// What health.json says.
struct StoredHealth {
  Health health;
  bool closed = false;  // monitoring was stopped in order
  std::string updated;  // UTC; "" for unknown
};
// nullopt for a missing file, which is no damage, and for an unreadable one, which is.
std::optional<StoredHealth> read_health_json(const RankDirectory& directory,
                                             std::vector<Damage>& damage);

}  // namespace trainmon
