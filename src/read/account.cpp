// Holds what the log gives against what health.json claims.

#include "read/account.h"

#include <algorithm>
#include <iterator>

#include "base/made_ahead.h"
#include "base/parallel.h"
#include "base/text.h"
#include "read/completeness.h"
#include "read/earlier_findings.h"
#include "read/expired_steps.h"
#include "read/missing_ranks.h"
#include "read/open_logs.h"
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

namespace {

// What is known of one rank and restart.
struct Found {
  const RankDirectory& place;
  const RunFacts& facts;
  const std::optional<StoredHealth>& stored;
  const LogContents& log;
};

class Accounting {
 public:
  explicit Accounting(const std::vector<RankDirectory>& directories) : directories_(directories) {}

  std::vector<Damage>& damage() { return result_.damage; }
  void add(const Found& found) {
    const auto& [directory, facts, stored, log] = found;
    RankAccount rank;
    rank.rank = directory.rank;
    rank.restart = directory.restart;
    rank.directory = directory.path;
    expected_.add(facts);
    rank.run_id = facts.run_id;
    rank.started = facts.process.started;
    rank.host = facts.process.host;
    rank.covered = facts.covered;
    rank.not_covered = facts.not_covered;
    rank.budget = facts.budget;
    if (stored) {
      rank.has_health = true;
      rank.closed = stored->closed;
      rank.health = stored->health;
    }
    rank.log_rows = log.rows;
    rank.log_files = log.files;
    rank.log_bytes = log.bytes;
    rank.torn_tails = log.torn_tails;
    damage().insert(damage().end(), log.damage.begin(), log.damage.end());
    check_sinks(rank, log);
    const auto is_here = [&](const RankDirectory& one) { return one.path == directory.path; };
    const auto at = std::ranges::find_if(directories_, is_here) - directories_.begin();
    rank.is_newest = is_last(directories_, static_cast<std::size_t>(at));
    Completeness state = completeness_of(directory, facts, stored, &log, rank.is_newest);
    if (!rank.is_newest && state.writer == WriterState::gone) killed_.add(rank.rank, rank.restart);
    if (!state.skips.empty()) result_.skipped.push_back(std::move(state.skips));
    rank.writer = state.writer;
    rank.last_step = state.last_step;
    rank.last_time_ns = state.last_time_ns;
    rank.incomplete = std::move(state.incomplete);
    damage().insert(damage().end(), state.damage.begin(), state.damage.end());
    earlier_.add(directory, facts, log);
    newest_restart_ = std::max(newest_restart_, rank.restart);
    result_.ranks.push_back(std::move(rank));
  }
  void add_unreadable(const RankDirectory& place) {
    damage().push_back({place.path, 0, place.error.message()});
  }
  Account finish() {
    result_.missing = expected_.missing(directories_);
    result_.earlier = earlier_.sentences(newest_restart_);
    result_.killed = killed_.sentences();
    result_.expired = expired_sentences(directories_, [](int) { return true; });
    return std::move(result_);
  }

 private:
  const std::vector<RankDirectory>& directories_;
  Account result_;
  ExpectedRanks expected_;
  EarlierFindings earlier_;
  FollowedKills killed_;
  int newest_restart_ = 0;
};

}  // namespace

Account account(const std::filesystem::path& run, unsigned threads) {
  const std::vector<RankDirectory> directories = rank_directories(run);
  Accounting accounting(directories);
  threads = threads_within_memory(directories, useful_threads(threads));
  const auto ranks = static_cast<unsigned>(std::min<std::size_t>(directories.size(), threads));
  struct Checked {
    RunFacts facts;
    std::optional<StoredHealth> stored;
    LogContents log;
    std::vector<Damage> damage;
  };
  const auto check = [&](std::size_t i) {
    const RankDirectory& place = directories[i];
    Checked one;
    if (place.error) return one;
    one.facts = read_run_json(place, one.damage);
    one.stored = read_health_json(place, one.damage);
    one.log = check_log(place.path, place.rank, place.restart, threads / ranks);
    return one;
  };
  MadeAhead<Checked> checked(directories.size(), ranks, check);
  for (const RankDirectory& place : directories) {
    Checked one = *checked.next();
    std::ranges::move(one.damage, std::back_inserter(accounting.damage()));
    if (place.error) {
      accounting.add_unreadable(place);
    } else {
      accounting.add({place, one.facts, one.stored, one.log});
    }
  }
  return accounting.finish();
}

Account account(const OpenedRun& run) {
  Accounting accounting(run.directories);
  for (const OpenedLog& one : run.logs) {
    if (one.place.error) {
      accounting.add_unreadable(one.place);
      continue;
    }
    accounting.damage().insert(accounting.damage().end(), one.damage.begin(), one.damage.end());
    accounting.add({one.place, one.facts, one.health, one.log->contents()});
  }
  return accounting.finish();
}

}  // namespace trainmon
