// Whether the record of a rank and restart is complete: one account for every reader.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "read/account.h"
#include "read/log.h"
#include "read/run_layout.h"
#include "trainmon/read.h"

namespace trainmon {

struct Completeness {
  WriterState writer = WriterState::unknown;
  std::optional<std::int64_t> last_step;
  std::int64_t last_time_ns = 0;
  std::vector<std::string> incomplete;  // sentences that name the rank
  std::string skips;  // "rank 0: the last 9 of 14 tries ..." (Timeline); of the newest restart
  std::vector<Damage> damage;  // of a closed run: parts of the log that are gone
};

// Killed starts that a newer one of the same rank followed: no news, but whoever looks at their
// records is told.
class FollowedKills {
 public:
  void add(int rank, int restart) { ranks_[restart].push_back(rank); }
  // "restart 0 was killed (ranks 0-3), and a newer one followed", by restart.
  std::vector<std::string> sentences() const;

 private:
  std::map<int, std::vector<int>> ranks_;  // by restart; ascending
};

// `log` may lack its rows, not its other records; nullptr where it was not read. Of a restart that
// a newer one of the same rank follows (`is_newest` false), that it was killed is no news. `sink`
// is the one whose files are read.
Completeness completeness_of(const RankDirectory& place, const RunFacts& facts,
                             const std::optional<StoredHealth>& stored, const LogContents* log,
                             bool is_newest, std::string_view sink = "log");
// How the newest start of the ranks that the options ask for ended: closed, or gone where one of
// them did not stop in order. Unset while one goes on, or where that cannot be told from here.
// Throws where there is no run.
std::optional<WriterState> ended(const std::filesystem::path& run, const ReadOptions& options);

}  // namespace trainmon
