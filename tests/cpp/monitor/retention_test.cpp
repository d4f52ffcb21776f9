// Retention of whole monitors: what stays keeps to its size, can be read without a word of damage,
// and says what is gone; over restarts, under readers, and killed at every place of a deletion.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "answers/diagnose.h"
#include "answers/tail.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "collect/series_registry.h"
#include "monitor_fixture.h"
#include "read/account.h"
#include "read/compact.h"
#include "read/log_index.h"
#include "read/log_segments.h"
#include "sinks/sinks.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;
using testing::observe;
using testing::Scratch;
using testing::series_of;

constexpr double kSegment = 0.002;
constexpr double kKept = 0.02;

Config kept(const Scratch& scratch) {
  Config config = scratch.config();
  config.segment_mb = kSegment;
  config.retention_mb = kKept;
  config.queue_mb = 512.0;
  config.flush_seconds = 3600.0;
  return config;
}

// `late` has its one series observed every tenth step alone, `w` at every one.
void train(Monitor& monitor, std::int64_t steps) {
  const SeriesId w = series_of(monitor, "w");
  const SeriesId late = series_of(monitor, "late");
  for (std::int64_t i = 0; i < steps; ++i) {
    const auto value = static_cast<float>(monitor.step(0));
    observe(monitor, w, {value});
    if (i % 10 == 0) observe(monitor, late, {value});
    monitor.begin_attempt(0);
    monitor.end_attempt(0, Fate::taken, 1.0);
    monitor.seal(Moment::after_step);
    if (i % 20 == 0) monitor.flush(60.0);
  }
  EXPECT_TRUE(monitor.flush(60.0));
}

std::int64_t bytes_in(const fs::path& path) {
  std::int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.path().extension() == ".tmlog") bytes += static_cast<std::int64_t>(entry.file_size());
  }
  return bytes;
}

// Rows from some step to the last one, without a hole, and nothing is called damage.
std::set<std::int64_t> steps_in(const Scratch& scratch, bool is_live = false) {
  const RunRows run = read_run(scratch.path);
  for (const Damage& one : run.damage) ADD_FAILURE() << one.file << ": " << one.what;
  std::set<std::int64_t> steps;
  for (const ReadRow& row : run.rows) {
    EXPECT_EQ(row.state.max, static_cast<double>(row.step));
    if (run.series[row.series].name == "w") steps.insert(row.step);
  }
  if (!steps.empty()) {
    EXPECT_EQ(*steps.rbegin() - *steps.begin() + 1, static_cast<std::int64_t>(steps.size()));
  }
  const Account books = account(scratch.path);
  for (const Damage& one : books.damage) ADD_FAILURE() << one.file << ": " << one.what;
  for (const RankAccount& rank : books.ranks) {
    for (const std::string& fault : rank.faults) ADD_FAILURE() << fault;
  }
  if (!is_live) {
    EXPECT_EQ(books.expired, run.expired);
  }
  return steps;
}

TEST(Retention, TheOldestSegmentsGoAndWhatIsGoneIsSaid) {
  const Scratch scratch;
  Monitor monitor(kept(scratch), Identity{});
  monitor.add_optimizer(100);
  Declared declared;
  declared.values = {{"lr", DeclaredValue::Type::number, 0.25, ""},
                     {"betas", DeclaredValue::Type::text, 0.0, "x"}};
  monitor.declare(declared);
  train(monitor, 300);
  EXPECT_LE(bytes_in(scratch.path), static_cast<std::int64_t>(kKept * 1024 * 1024));
  declared.values = {{"lr", DeclaredValue::Type::number, 0.5, ""}};
  monitor.declare(declared);
  train(monitor, 300);
  const Health health = monitor.stop();
  EXPECT_LE(bytes_in(scratch.path), static_cast<std::int64_t>(kKept * 1024 * 1024));
  EXPECT_GT(bytes_in(scratch.path), static_cast<std::int64_t>(kKept * 1024 * 512));
  const SinkHealth& sink = health.sinks.at(0);
  EXPECT_EQ(sink.rows_written, 660);
  EXPECT_EQ(sink.rows_deleted, 0);
  const std::set<std::int64_t> steps = steps_in(scratch);
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(*steps.rbegin(), 699);
  EXPECT_GT(*steps.begin(), 500);
  const RunRows run = read_run(scratch.path);
  EXPECT_EQ(sink.rows_expired + static_cast<std::int64_t>(run.rows.size()), 660);
  ASSERT_EQ(run.expired.size(), 1u);
  const std::int64_t whole = *steps.begin() + 1;
  EXPECT_TRUE(run.expired[0].find("from step " + std::to_string(whole) + " on") !=
                  std::string::npos ||
              run.expired[0].find("from step " + std::to_string(*steps.begin()) + " on") !=
                  std::string::npos)
      << run.expired[0] << " of " << whole;
  // Names of series and declared values that old segments told of are there.
  std::set<std::string> names;
  for (const ReadRow& row : run.rows) names.insert(run.series[row.series].name);
  EXPECT_EQ(names, (std::set<std::string>{"w", "late"}));
  std::multiset<std::pair<std::int64_t, std::string>> values;
  for (const ReadDeclared& one : run.declared) {
    values.emplace(
        one.step, one.value.name +
                      (one.value.text.empty() ? std::to_string(one.value.number) : one.value.text));
  }
  EXPECT_EQ(values, (std::multiset<std::pair<std::int64_t, std::string>>{{100, "betasx"},
                                                                         {400, "lr0.500000"}}));
}

// A run that writes little begins no segment for days.
TEST(Retention, OldSegmentsGoWhileOneStaysOpen) {
  for (const auto interval : {std::chrono::seconds(0), std::chrono::seconds(600)}) {
    const Scratch scratch;
    RunInfo run;
    run.directory = scratch.path;
    Series series;
    series.kind = "grad_reduced";
    SeriesRegistry table;
    const SeriesId id = table.add(series);
    const std::unique_ptr<Sink> sink = make_log_sink(2000, {0, std::chrono::hours(24), interval});
    sink->open(run, table);
    RecordBatch batch;
    const auto write = [&] {
      ++batch.number;
      batch.rows.assign(1, {{id, 0, 0, 0, 0, batch.number}, RowState{}});
      sink->write(batch);
    };
    const auto segments = [&] {
      std::vector<fs::path> paths;
      for (const auto& entry : fs::directory_iterator(scratch.path)) {
        if (entry.path().extension() == ".tmlog") paths.push_back(entry.path());
      }
      std::ranges::sort(paths);
      return paths;
    };
    while (segments().size() < 4) write();
    const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(48);
    const std::vector<fs::path> all = segments();
    for (std::size_t i = 0; i < 3; ++i) fs::last_write_time(all[i], long_ago);
    write();
    if (interval.count() > 0) {
      EXPECT_EQ(segments(), all);
    } else {
      EXPECT_EQ(segments(), std::vector<fs::path>{all[3]});
      EXPECT_GT(sink->rows_expired(), 0);
    }
  }
}

TEST(Retention, WhatReadersKeptOfASegmentGoesWithIt) {
  const Scratch scratch;
  Monitor monitor(kept(scratch), Identity{});
  monitor.add_optimizer(0);
  train(monitor, 50);
  const fs::path directory = scratch.path / "rank_00000" / "restart_0000";
  write_atomically(directory / "log-000000.tmindex", "an index");
  ASSERT_TRUE(fs::exists(directory / "log-000000.tmlog"));
  train(monitor, 550);
  monitor.stop();
  EXPECT_FALSE(fs::exists(directory / "log-000000.tmlog"));
  EXPECT_FALSE(fs::exists(directory / "log-000000.tmindex"));
}

TEST(Retention, WithoutItEverythingStaysAndNoFileIsMade) {
  const Scratch scratch;
  Config config = kept(scratch);
  config.retention_mb = 0.0;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  train(monitor, 300);
  const fs::path directory = monitor.run().directory;
  monitor.stop();
  EXPECT_FALSE(fs::exists(directory / "retention.json"));
  EXPECT_EQ(steps_in(scratch).size(), 300u);
}

TEST(Retention, DaysDeleteWhatIsOld) {
  const Scratch scratch;
  Config config = kept(scratch);
  config.retention_mb = 0.0;
  config.retention_days = 1.0;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  train(monitor, 200);
  EXPECT_EQ(steps_in(scratch).size(), 200u);
  for (const auto& entry : fs::directory_iterator(monitor.run().directory)) {
    const std::string name = entry.path().filename().string();
    if (name > "log-000003.tmlog" || !name.starts_with("log-")) continue;
    fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::hours(25));
  }
  train(monitor, 100);
  monitor.stop();
  EXPECT_FALSE(fs::exists(monitor.run().directory / "log-000003.tmlog"));
  EXPECT_TRUE(fs::exists(monitor.run().directory / "log-000004.tmlog"));
  EXPECT_LT(steps_in(scratch).size(), 300u);
}

TEST(Retention, StartsBeforeThisOneGoFirst) {
  const Scratch scratch;
  for (int start = 0; start < 6; ++start) {
    Monitor monitor(kept(scratch), Identity{});
    monitor.add_optimizer(120 * start);
    train(monitor, 120);
    monitor.stop();
    EXPECT_LE(bytes_in(scratch.path), static_cast<std::int64_t>(kKept * 1024 * 1024));
    const std::set<std::int64_t> steps = steps_in(scratch);
    ASSERT_FALSE(steps.empty());
    EXPECT_EQ(*steps.rbegin(), 120 * start + 119);
  }
  EXPECT_EQ(read_run(scratch.path).expired.size(), 1u);
}

TEST(Retention, ACompactedLogGoesOnLosingItsOldest) {
  const Scratch scratch;
  Monitor monitor(kept(scratch), Identity{});
  monitor.add_optimizer(0);
  for (int i = 0; i < 5; ++i) {
    train(monitor, 100);
    const Compaction done = compact(scratch.path, [](std::int64_t, std::int64_t) { return true; });
    EXPECT_TRUE(done.damage.empty());
    EXPECT_EQ(*steps_in(scratch).rbegin(), 100 * i + 99);
  }
  monitor.stop();
  EXPECT_EQ(*steps_in(scratch).rbegin(), 499);
  EXPECT_EQ(read_run(scratch.path).expired.size(), 1u);
}

// The steps that `index` has, without a hole.
std::set<std::int64_t> steps_of(const LogIndex& index) {
  std::set<std::int64_t> steps;
  std::vector<Damage> damage = index.contents().damage;
  for (const LogIndex::Piece& piece : index.pieces(1)) {
    index.read(
        piece, [](SeriesId) { return true; },
        [](const LogIndex::BatchFacts&) { return Columns::all(); },
        [&](RecordBatch&& batch, const LogIndex::BatchFacts&) {
          for (const Row& row : batch.rows) steps.insert(row.key.window);
        },
        damage);
  }
  for (const Damage& one : damage) ADD_FAILURE() << one.file << ": " << one.what;
  if (!steps.empty()) {
    EXPECT_EQ(*steps.rbegin() - *steps.begin() + 1, static_cast<std::int64_t>(steps.size()));
  }
  return steps;
}

TEST(Retention, AReaderThatBeganBeforeTheFirstDeletionHasNoHole) {
  const Scratch scratch;
  Monitor monitor(kept(scratch), Identity{});
  monitor.add_optimizer(0);
  train(monitor, 60);
  const fs::path log = scratch.path / "rank_00000" / "restart_0000";
  Allowance allowance;
  const LogIndex index(log, 0, 0, allowance);
  EXPECT_EQ(index.contents().expired.first_segment, 0);
  train(monitor, 300);
  std::vector<Damage> damage;
  EXPECT_GT(expired_in(log, damage).first_segment, 0);
  EXPECT_EQ(steps_of(index).size(), 60u);
  EXPECT_TRUE(damage.empty());
  monitor.stop();
}

// A thread may find its segment deleted after another one has opened an older segment.
TEST(Retention, AReaderOfManyThreadsHasNoHole) {
  const Scratch scratch;
  Monitor monitor(kept(scratch), Identity{});
  monitor.add_optimizer(0);
  train(monitor, 60);
  std::atomic<bool> is_over = false;
  std::thread trains([&] {
    train(monitor, 6000);
    is_over = true;
  });
  const fs::path log = scratch.path / "rank_00000" / "restart_0000";
  while (!is_over && !HasFailure()) {
    Allowance allowance;
    steps_of(LogIndex(log, 0, 0, allowance, 8));
  }
  trains.join();
  monitor.stop();
}

// One that has the directory's list, or has read half of the files, sees no damage.
TEST(Retention, ReadersAndFollowersSeeNoDamage) {
  const Scratch scratch;
  Monitor monitor(kept(scratch), Identity{});
  monitor.add_optimizer(0);
  std::atomic<bool> is_over = false;
  std::thread trains([&] {
    train(monitor, 6000);
    is_over = true;
  });
  std::set<std::int64_t> told;
  RunTail tail(scratch.path, {}, false, 1);
  int reads = 0;
  while (!is_over) {
    steps_in(scratch, true);
    const TailNews news = tail.look();
    for (const Damage& one : news.damage) ADD_FAILURE() << one.file << ": " << one.what;
    for (const TailStep& step : news.steps) {
      EXPECT_TRUE(told.insert(step.outcome.step).second) << step.outcome.step;
    }
    ++reads;
    if (HasFailure()) break;
  }
  trains.join();
  monitor.stop();
  for (int i = 0; i < 20; ++i) {
    for (const TailStep& step : tail.look().steps) told.insert(step.outcome.step);
  }
  for (const TailStep& step : tail.unfinished().steps) told.insert(step.outcome.step);
  EXPECT_EQ(*told.rbegin(), 5999);
  EXPECT_GT(reads, 3);
}

// The file that tells of it cannot be written: nothing is deleted, and everything goes on.
TEST(Retention, ADiskWithoutRoomDeletesNothingThatReadersWouldMiss) {
  const Scratch scratch;
  Monitor monitor(kept(scratch), Identity{});
  monitor.add_optimizer(0);
  set_failpoints("retention.write=errno:" + std::to_string(ENOSPC) + "@1+");
  train(monitor, 300);
  EXPECT_EQ(steps_in(scratch).size(), 300u);
  set_failpoints("retention.unlink=errno:" + std::to_string(EIO) + "@1+");
  train(monitor, 100);
  EXPECT_GT(bytes_in(scratch.path), static_cast<std::int64_t>(kKept * 1024 * 1024));
  EXPECT_EQ(*steps_in(scratch).rbegin(), 399);
  set_failpoints("");
  train(monitor, 100);
  EXPECT_LE(bytes_in(scratch.path), static_cast<std::int64_t>(kKept * 1024 * 1024));
  monitor.stop();
  EXPECT_EQ(*steps_in(scratch).rbegin(), 499);
}

class KilledAt : public ::testing::TestWithParam<const char*> {};

TEST_P(KilledAt, WhatIsThereIsWhole) {
  for (int hit = 1; hit <= 12; ++hit) {
    const Scratch scratch;
    std::int64_t last = -1;
    for (int start = 0; start < 3; ++start) {
      const pid_t child = fork();
      if (child == 0) {
        set_failpoints(std::string(GetParam()) + "=kill@" + std::to_string(hit));
        Monitor monitor(kept(scratch), Identity{});
        monitor.add_optimizer(last + 1);
        train(monitor, 400);
        _exit(0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
      const std::set<std::int64_t> steps = steps_in(scratch);
      ASSERT_FALSE(steps.empty()) << GetParam() << " " << hit;
      EXPECT_GT(*steps.rbegin(), last);
      last = *steps.rbegin();
    }
    Monitor monitor(kept(scratch), Identity{});
    monitor.add_optimizer(last + 1);
    train(monitor, 200);
    monitor.stop();
    EXPECT_LE(bytes_in(scratch.path), static_cast<std::int64_t>(kKept * 1024 * 1024));
    EXPECT_EQ(*steps_in(scratch).rbegin(), last + 200);
  }
}

INSTANTIATE_TEST_SUITE_P(Sites, KilledAt, ::testing::Values("retention.write", "retention.unlink"));

}  // namespace
}  // namespace trainmon
