// kill -9 at any instant: the log parses, holds a prefix without holes, and loses at most one flush
// interval. TRAINMON_KILLS sets the number of kills (300 unless set; make torture uses 5000).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <vector>

#include "kill_child.h"
#include "trainmon/read.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr double kFlushSeconds = 0.05;

struct Tally {
  int between_writes = 0;  // killed after its first row was written and before its last
  int bound_checked = 0;   // something had been sealed one flush interval before the kill
  int late = 0;            // and was not there: the writer had no processor, or no disk
  std::size_t rows = 0;
  std::int64_t torn = 0;
};

void check_restart(const std::vector<const ReadRow*>& rows, const Kill& killed, Tally& tally) {
  std::vector<std::uint64_t> seqs;
  for (const ReadRow* row : rows) {
    seqs.push_back(row->seq);
    const auto number = static_cast<double>(row->call);
    ASSERT_EQ(row->state.count, 3);
    ASSERT_EQ(row->state.min, number);
    ASSERT_EQ(row->state.max, number);
    ASSERT_EQ(row->state.sum, 3 * number);
  }
  std::sort(seqs.begin(), seqs.end());
  for (std::size_t i = 0; i < seqs.size(); ++i) ASSERT_EQ(seqs[i], i + 1) << "a hole or a repeat";
  if (!seqs.empty()) ++tally.between_writes;
  tally.rows += seqs.size();

  std::uint64_t due = 0;
  const auto interval = static_cast<std::int64_t>(kFlushSeconds * 1e9);
  for (const KillReport& report : killed.reports) {
    if (report.time_ns <= killed.time_ns - interval) due = std::max(due, report.sealed);
    EXPECT_GE(seqs.size(), report.flushed) << "flushed, yet lost";
  }
  if (due > 0) {
    ++tally.bound_checked;
    tally.late += seqs.size() < due;
  }
}

TEST(KillLoop, TheLogIsAPrefixWithoutHoles) {
  const int kills = wanted_kills(300);
  ASSERT_GT(kills, 0);
  const unsigned seed = std::random_device{}();
  std::printf("%d kills, seed %u\n", kills, seed);
  std::mt19937 random(seed);
  std::string name = (fs::temp_directory_path() / "trainmon-kill-XXXXXX").string();
  const fs::path scratch = mkdtemp(name.data());

  Tally tally;
  constexpr int kPerRun = 10;  // resumed nine times in the same directory
  for (int done = 0; done < kills;) {
    const fs::path run = scratch / std::to_string(done);
    std::vector<Kill> killed;
    for (int i = 0; i < kPerRun && done < kills; ++i, ++done) {
      const auto life = std::chrono::microseconds(15000 + random() % 160000);
      // Every third child dies between two parts of one write, which tears a frame in half.
      std::string torn;
      if (i % 3 == 2) torn = TornWrite{"file.write", 10, 60}.spec(random);
      Kill one = start_and_kill(run, life, torn.empty() ? nullptr : torn.c_str(), kFlushSeconds);
      // On a starved machine one may die before it has a directory; it has sealed nothing then.
      char name_of_restart[16];
      std::snprintf(name_of_restart, sizeof name_of_restart, "restart_%04zu", killed.size());
      if (!fs::exists(run / "rank_00000" / name_of_restart)) {
        EXPECT_TRUE(one.reports.empty());
        continue;
      }
      // One that a failpoint killed died earlier than the parent's kill: no bound to check.
      if (!torn.empty()) one.time_ns = 0;
      killed.push_back(std::move(one));
    }
    ReadOptions options;
    options.all_restarts = true;
    const RunRows rows = read_run(run, options);
    EXPECT_TRUE(rows.damage.empty())
        << rows.damage.front().file << " at " << rows.damage.front().offset << ": "
        << rows.damage.front().what;
    tally.torn += rows.torn_tails;
    std::map<int, std::vector<const ReadRow*>> by_restart;
    for (const ReadRow& row : rows.rows) by_restart[row.restart].push_back(&row);
    for (std::size_t i = 0; i < killed.size(); ++i) {
      check_restart(by_restart[static_cast<int>(i)], killed[i], tally);
    }
    fs::remove_all(run);
  }
  fs::remove_all(scratch);
  std::printf(
      "%zu rows read back, %d of %d kills between the first and the last write, "
      "%d with a bound, %d of them late, %lld torn tails\n",
      tally.rows, tally.between_writes, kills, tally.bound_checked, tally.late,
      static_cast<long long>(tally.torn));
  EXPECT_GE(tally.between_writes * 100, kills * 80);
  EXPECT_GT(tally.bound_checked, kills / 4);
  // Other work on the machine may hold up a writer for an interval, now and then.
  EXPECT_LE(tally.late * 50, tally.bound_checked) << "sealed a flush interval before, yet lost";
}

}  // namespace
}  // namespace trainmon
