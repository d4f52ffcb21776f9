// Holds what the log gives against what health.json claims.

#include "read/account.h"

#include <algorithm>

#include "base/text.h"
#include "read/completeness.h"
#include "read/earlier_findings.h"
#include "read/expired_steps.h"
#include "read/missing_ranks.h"
#include "read/run_layout.h"
#include "trainmon/read.h"

namespace trainmon {
namespace {

void check_sinks(RankAccount& account, const LogContents& log) {
  if (!account.has_health) {
    account.faults.push_back("no health.json: whether rows were dropped cannot be told");
    return;
  }
  for (const SinkHealth& sink : account.health.sinks) {
    const std::int64_t accounted = sink.rows_written + rows_dropped(sink);
    if (account.closed && accounted != account.health.rows_produced) {
      account.faults.push_back("sink " + sink.name + ": " + grouped(account.health.rows_produced) +
                               " rows produced, but " + grouped(accounted) + " written or dropped");
    }
    if (sink.name != "log") continue;
    const std::int64_t found = log.rows + rows_deleted(log);
    // While a run is alive the log may be ahead of health.json, never behind. Where it is not known
    // how much was deleted, it may be behind.
    const bool is_behind = found < sink.rows_written && log.expired.rows >= 0;
    if (is_behind || (account.closed && found > sink.rows_written)) {
      account.faults.push_back("the log gives " + grouped(found) + " rows, health.json says " +
                               grouped(sink.rows_written) + " were written");
    }
  }
}

}  // namespace

std::int64_t rows_dropped(const SinkHealth& sink) {
  std::int64_t total = 0;
  for (const auto& [reason, rows] : sink.rows_dropped) total += rows;
  return total;
}

std::int64_t rows_deleted(const LogContents& log) {
  std::int64_t total = std::max<std::int64_t>(0, log.expired.rows);
  for (const RecordBatch& batch : log.batches) {
    for (const Gap& gap : batch.gaps) {
      if (gap.reason == "deleted") total += gap.rows;
    }
  }
  return total;
}

std::int64_t Account::rows() const {
  std::int64_t total = 0;
  for (const RankAccount& rank : ranks) total += rank.log_rows;
  return total;
}

Account account(const std::filesystem::path& run) {
  Account result;
  ExpectedRanks expected;
  EarlierFindings earlier;
  FollowedKills killed;
  int newest_restart = 0;
  const std::vector<RankDirectory> directories = rank_directories(run);
  for (std::size_t i = 0; i < directories.size(); ++i) {
    const RankDirectory& directory = directories[i];
    if (directory.error) {
      result.damage.push_back({directory.path, 0, directory.error.message()});
      continue;
    }
    RankAccount rank;
    rank.rank = directory.rank;
    rank.restart = directory.restart;
    rank.directory = directory.path;
    RunFacts facts = read_run_json(directory, result.damage);
    expected.add(facts);
    rank.run_id = facts.run_id;
    rank.started = facts.started;
    rank.host = facts.host;
    rank.covered = facts.covered;
    rank.not_covered = facts.not_covered;
    rank.budget = facts.budget;
    const std::optional<StoredHealth> stored = read_health_json(directory, result.damage);
    if (stored) {
      rank.has_health = true;
      rank.closed = stored->closed;
      rank.health = stored->health;
    }
    const LogContents log = check_log(directory.path, directory.rank, directory.restart);
    rank.log_rows = log.rows;
    rank.log_files = log.files;
    rank.log_bytes = log.bytes;
    rank.torn_tails = log.torn_tails;
    result.damage.insert(result.damage.end(), log.damage.begin(), log.damage.end());
    check_sinks(rank, log);
    rank.is_newest = is_newest(directories, i);
    Completeness state = completeness_of(directory, facts, stored, &log, rank.is_newest);
    if (!rank.is_newest && state.writer == WriterState::gone) killed.add(rank.rank, rank.restart);
    if (!state.skips.empty()) result.skipped.push_back(std::move(state.skips));
    rank.writer = state.writer;
    rank.last_step = state.last_step;
    rank.last_time_ns = state.last_time_ns;
    rank.incomplete = std::move(state.incomplete);
    result.damage.insert(result.damage.end(), state.damage.begin(), state.damage.end());
    earlier.add(directory, facts, log);
    newest_restart = std::max(newest_restart, rank.restart);
    result.ranks.push_back(std::move(rank));
  }
  result.missing = expected.missing(directories);
  result.earlier = earlier.sentences(newest_restart);
  result.killed = killed.sentences();
  result.expired = expired_sentences(directories, [](int) { return true; });
  return result;
}

}  // namespace trainmon
