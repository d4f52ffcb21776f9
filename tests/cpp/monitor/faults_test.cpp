// Faults of the disk under a whole monitor, by failpoints: training goes on, losses are counted by
// reason, writing resumes, and what was counted as written can be read.
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/failpoint.h"
#include "monitor_fixture.h"
#include "read/account.h"

namespace trainmon {
namespace {

using testing::observe;
using testing::Scratch;
using testing::series_of;

// Fifty batches of one row, with a fault from the k-th write on or only there.
struct Outcomes {
  Health health;
  std::size_t read = 0;
};
Outcomes run_with(const std::string& spec, const Scratch& scratch) {
  Monitor monitor(scratch.config(), Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  set_failpoints(spec);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(observe(monitor, w, {static_cast<float>(i)}), Observed::recorded);
    monitor.seal(Moment::after_step);
    if (i == 25) {
      EXPECT_TRUE(monitor.settle(60.0));
      set_failpoints("");
    }
  }
  const Health health = monitor.stop();
  set_failpoints("");
  return {health, read_run(scratch.path).rows.size()};
}

void expect_law(const Outcomes& outcomes) {
  const SinkHealth& sink = outcomes.health.sinks.at(0);
  std::int64_t total = sink.rows_written;
  for (const auto& [reason, rows] : sink.rows_dropped) total += rows;
  EXPECT_EQ(total, 50);
  EXPECT_EQ(outcomes.health.rows_produced, 50);
  EXPECT_EQ(static_cast<std::int64_t>(outcomes.read), sink.rows_written);
  EXPECT_GE(sink.rows_written, 20) << "writing did not resume";
}

class EveryDiskFault : public ::testing::TestWithParam<std::pair<int, const char*>> {};

TEST_P(EveryDiskFault, IsCountedAndRecoveredFrom) {
  const auto [error, reason] = GetParam();
  const Scratch scratch;
  const Outcomes outcomes = run_with("file.write=errno:" + std::to_string(error) + "@3+", scratch);
  expect_law(outcomes);
  EXPECT_GT(outcomes.health.sinks.at(0).rows_dropped.count(reason), 0u);
}

INSTANTIATE_TEST_SUITE_P(Errnos, EveryDiskFault,
                         ::testing::Values(std::pair{ENOSPC, "no_space"},
                                           std::pair{EDQUOT, "no_space"},
                                           std::pair{EIO, "io_error"},
                                           std::pair{EROFS, "read_only"},
                                           std::pair{EFBIG, "file_limit"}));

// The rows of a full disk are lost and counted; what a rule found in them is not.
TEST(DiskFaults, AlertsOfAFullDiskAreWrittenWhenItHasRoomAgain) {
  const Scratch scratch;
  MonitorParts parts;
  parts.rules.push_back(make_deviation_rule({0.5, {Stat::mean}, 3}, {true}));
  Monitor monitor(scratch.config(), Identity{}, std::move(parts));
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  const auto step = [&](float value) {
    EXPECT_EQ(observe(monitor, w, {value}), Observed::recorded);
    EXPECT_TRUE(monitor.settle(10.0));
  };
  for (int i = 0; i < 5; ++i) step(1.0f);
  set_failpoints("file.write=errno:" + std::to_string(ENOSPC) + "@1+");
  step(100.0f);
  step(0.01f);
  set_failpoints("");
  const Health health = monitor.stop();
  EXPECT_EQ(health.sinks.at(0).rows_dropped.at("no_space"), 2);
  const RunRows run = read_run(scratch.path);
  EXPECT_EQ(run.rows.size(), 5u);
  ASSERT_EQ(run.alerts.size(), 2u);
  EXPECT_EQ(run.alerts[0].alert.value, 100.0);
  EXPECT_EQ(run.alerts[0].alert.expected, 1.0);
  EXPECT_NEAR(run.alerts[1].alert.value, 0.01, 1e-9);
  EXPECT_NEAR(run.alerts[1].alert.expected, 0.99 + 0.01 * 100, 1e-9);
}

// They are few, so they wait for the disk. Those that no longer do are counted.
TEST(DiskFaults, LoggedValuesOfAFullDiskAreWrittenLaterOrCounted) {
  constexpr int kWaiting = 1 << 16;
  struct Case {
    bool has_room_again;
    int more;  // values that are logged while the disk is full
    std::size_t read;
    std::int64_t lost;
  };
  for (const Case& one : {Case{true, 0, 60, 0}, Case{true, kWaiting, 10 + kWaiting, 20 + 30},
                          Case{false, 0, 10, 20 + 30}}) {
    const Scratch scratch;
    Config config = scratch.config();
    config.sinks = {"log", "csv"};
    config.flush_seconds = 3600.0;
    Monitor monitor(config, Identity{});
    monitor.add_optimizer(0);
    const SeriesId w = series_of(monitor, "w");
    const auto log = [&](int values) {
      for (int i = 0; i < values; ++i) monitor.add_scalar("loss", 0.5 * i);
      observe(monitor, w, {1.0f});
      monitor.flush(30.0);
    };
    log(10);
    set_failpoints("file.write=errno:" + std::to_string(ENOSPC) + "@1+");
    log(20);
    if (one.more > 0) log(one.more);
    log(30);
    if (one.has_room_again) set_failpoints("");
    const Health health = monitor.stop();
    set_failpoints("");
    const RunRows run = read_run(scratch.path);
    EXPECT_EQ(run.scalars.size(), one.read);
    std::map<std::string, std::int64_t> lost;
    if (one.lost > 0) lost["no_space"] = one.lost;
    EXPECT_EQ(health.scalars_dropped, lost);
    if (!one.has_room_again) continue;  // there was none for health.json either
    std::string said;
    for (const std::string& sentence : run.incomplete) said += sentence + "\n";
    const bool is_said = said.find(": 50 logged values were dropped (no_space 50)") != said.npos;
    EXPECT_EQ(is_said, one.lost > 0) << said;
  }
}

// No new file fits: the counts go into the room of the old health.json.
TEST(DiskFaults, WhatAFullDiskLostIsTold) {
  const Scratch scratch;
  Monitor monitor(scratch.config(), Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  observe(monitor, w, {1.0f});
  EXPECT_TRUE(monitor.settle(10.0));
  const auto health = monitor.run().directory / "health.json";
  for (int i = 0; i < 500 && !std::filesystem::exists(health); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::string no_space = std::to_string(ENOSPC);
  set_failpoints("file.open=errno:" + no_space + "@1+;file.write=errno:" + no_space + "@1");
  observe(monitor, w, {2.0f});
  EXPECT_TRUE(monitor.settle(10.0));
  monitor.stop();
  set_failpoints("");
  const Account books = trainmon::account(scratch.path);
  ASSERT_EQ(books.ranks.size(), 1u);
  EXPECT_TRUE(books.ranks[0].closed);
  EXPECT_EQ(books.ranks[0].health.sinks.at(0).rows_dropped.at("no_space"), 1);
}

TEST(DiskFaults, AShortWriteThenNoSpaceLeavesNoTornFrame) {
  const Scratch scratch;
  const Outcomes outcomes =
      run_with("file.write=short:30@3;file.write=errno:" + std::to_string(ENOSPC) + "@4", scratch);
  expect_law(outcomes);
}

TEST(DiskFaults, WhenTheTailCannotBeCutOffANewSegmentIsUsed) {
  const Scratch scratch;
  const std::string no_space = std::to_string(ENOSPC);
  const Outcomes outcomes = run_with(
      "file.write=short:30@3;file.write=errno:" + no_space + "@4;log.truncate=errno:5@1+", scratch);
  expect_law(outcomes);
}

TEST(DiskFaults, NoDescriptorsLeft) {
  const Scratch scratch;
  const Outcomes outcomes =
      run_with("file.open=errno:" + std::to_string(EMFILE) + "@1+;file.write=errno:5@3", scratch);
  expect_law(outcomes);
}

TEST(DiskFaults, ASlowDiskNeverSlowsTheProducer) {
  const Scratch scratch;
  Config config = scratch.config();
  config.stop_timeout_seconds = 0.3;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  set_failpoints("file.write=sleep:4000@2+");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) {
    observe(monitor, w, {1.0f});
    monitor.seal(Moment::after_step);
  }
  const Health health = monitor.stop();
  // Waiting for the disk even once takes four seconds.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(3500));
  set_failpoints("");
  std::int64_t total = health.sinks.at(0).rows_written;
  for (const auto& [reason, rows] : health.sinks.at(0).rows_dropped) total += rows;
  EXPECT_EQ(total, health.rows_produced);
}

// What ran out of time is on the disk when stop() returns, not only in the process.
TEST(DiskFaults, AStopThatRanOutOfTimeIsInHealthJson) {
  const Scratch scratch;
  Config config = scratch.config();
  config.stop_timeout_seconds = 0.3;
  config.flush_seconds = 3600;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  set_failpoints("file.write=sleep:4000@1");  // the log's
  for (int i = 0; i < 50; ++i) {
    observe(monitor, w, {1.0f});
    monitor.seal(Moment::after_step);
  }
  const Health health = monitor.stop();
  set_failpoints("");
  std::ifstream file(monitor.run().directory / "health.json");
  const auto stored = nlohmann::json::parse(file);
  const auto& sink = stored.at("sinks").at(0);
  EXPECT_EQ(sink.at("rows_dropped").at("stop_timeout"),
            health.sinks.at(0).rows_dropped.at("stop_timeout"));
  EXPECT_GT(sink.at("rows_dropped").at("stop_timeout"), 0);
  EXPECT_EQ(stored.at("closed"), false);
  const RunRows rows = read_run(scratch.path);
  ASSERT_FALSE(rows.incomplete.empty());
  EXPECT_NE(rows.incomplete[0].find("stop_timeout"), std::string::npos) << rows.incomplete[0];
}

TEST(HealthJson, IsThereFromTheStart) {
  const Scratch scratch;
  const Monitor monitor(scratch.config(), Identity{});
  std::ifstream file(monitor.run().directory / "health.json");
  const auto stored = nlohmann::json::parse(file);
  EXPECT_EQ(stored.at("closed"), false);
  EXPECT_EQ(stored.at("rows_produced"), 0);
}

// Without a writer thread there is no monitor; the thread that asked for one is as it was before.
TEST(NoThread, IsSaidAndTheSignalMaskIsWhatItWas) {
  const Scratch scratch;
  sigset_t before;
  sigemptyset(&before);
  sigaddset(&before, SIGUSR2);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  set_failpoints("pipe.thread=errno:" + std::to_string(EAGAIN));
  std::string said;
  try {
    Monitor monitor(scratch.config(), Identity{});
  } catch (const std::runtime_error& error) {
    said = error.what();
  }
  set_failpoints("");
  EXPECT_NE(said.find("writer thread cannot be started"), std::string::npos) << said;
  EXPECT_NE(said.find("ulimit -u"), std::string::npos) << said;
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < 32; ++signal) {
    EXPECT_EQ(sigismember(&after, signal), signal == SIGUSR2 ? 1 : 0) << signal;
  }
  sigemptyset(&before);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  Monitor monitor(scratch.config(), Identity{});
  EXPECT_EQ(monitor.stop().errors, 0);
}

}  // namespace
}  // namespace trainmon
