// Monitor::flush(): what was handed over is in the files when it says so, and it never says so
// falsely: stalled, failing and full disks, full queues, several threads, forks, after the end.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/failpoint.h"
#include "monitor_fixture.h"

namespace trainmon {
namespace {

using testing::observe;
using testing::Scratch;
using testing::series_of;

// Nothing comes to the disk but by flush().
Config slow(const Scratch& scratch) {
  Config config = scratch.config();
  config.flush_seconds = 3600.0;
  return config;
}

std::size_t rows_in(const Scratch& scratch) {
  return read_run(scratch.path).rows.size();
}

TEST(Flush, WhatWasHandedOverIsInTheFilesOfEverySink) {
  const Scratch scratch;
  Config config = slow(scratch);
  config.sinks = {"log", "sqlite", "csv"};
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  for (int i = 1; i <= 5; ++i) {
    observe(monitor, w, {static_cast<float>(i)});  // not sealed
    EXPECT_TRUE(monitor.flush(30.0));
    EXPECT_EQ(rows_in(scratch), static_cast<std::size_t>(i));
  }
  EXPECT_TRUE(monitor.flush(0.5)) << "nothing is left to write";
  monitor.stop();
  EXPECT_TRUE(monitor.flush(0.0)) << "after a stop that has written everything";
}

// Nobody knows what it lost, and the next one on that file would not say.
TEST(Flush, ASyncThatFailsIsToldOnceAndAnotherLogFileFollows) {
  const Scratch scratch;
  Config config = slow(scratch);
  config.fsync = "flush";
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  observe(monitor, w, {1.0f});
  ASSERT_TRUE(monitor.flush(30.0));
  set_failpoints("file.sync=errno:" + std::to_string(EIO) + "@1");
  observe(monitor, w, {2.0f});
  EXPECT_FALSE(monitor.flush(30.0));
  set_failpoints("");
  observe(monitor, w, {3.0f});
  EXPECT_TRUE(monitor.flush(30.0));
  EXPECT_TRUE(std::filesystem::exists(monitor.run().directory / "log-000001.tmlog"));
  EXPECT_EQ(monitor.stop().sinks.at(0).rows_written, 3);
  EXPECT_EQ(rows_in(scratch), 3u);
}

TEST(Flush, AStalledDiskIsWaitedForAndNoLonger) {
  const Scratch scratch;
  Monitor monitor(slow(scratch), Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  observe(monitor, w, {1.0f});
  ASSERT_TRUE(monitor.flush(30.0));
  set_failpoints("file.write=sleep:700@1");
  observe(monitor, w, {2.0f});
  EXPECT_FALSE(monitor.flush(0.05));
  EXPECT_FALSE(monitor.flush(0.0));
  EXPECT_FALSE(monitor.flush(std::nan("")));
  EXPECT_FALSE(monitor.flush(-1.0));
  EXPECT_TRUE(monitor.flush(1e300)) << "the write is slow, and then done";
  EXPECT_EQ(rows_in(scratch), 2u);
  set_failpoints("");
}

TEST(Flush, AQuestionEndsTheWait) {
  const Scratch scratch;
  Monitor monitor(slow(scratch), Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  set_failpoints("file.write=sleep:1500@1");
  observe(monitor, w, {1.0f});
  int asked = 0;
  EXPECT_FALSE(monitor.flush(1e9, [&] { return ++asked < 3; }));
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(monitor.flush(30.0));
  set_failpoints("");
}

TEST(Flush, AFullDiskIsToldUntilItHasRoom) {
  const Scratch scratch;
  Monitor monitor(slow(scratch), Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  observe(monitor, w, {1.0f});
  ASSERT_TRUE(monitor.flush(30.0));
  set_failpoints("file.write=errno:" + std::to_string(ENOSPC) + "@1+");
  observe(monitor, w, {2.0f});
  EXPECT_FALSE(monitor.flush(30.0));
  EXPECT_FALSE(monitor.flush(30.0)) << "the loss is not told in the data yet";
  set_failpoints("");
  observe(monitor, w, {3.0f});
  EXPECT_TRUE(monitor.flush(30.0));
  const Health health = monitor.stop();
  EXPECT_EQ(health.sinks.at(0).rows_dropped.at("no_space"), 1);
  EXPECT_EQ(rows_in(scratch), 2u);
}

// Flagged rows that found no room ride on the next batch, which flush() is.
TEST(Flush, WhatAFullQueueCarriesIsWrittenOrNotToldAsWritten) {
  const Scratch scratch;
  Config config = slow(scratch);
  config.queue_mb = 0.001;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  observe(monitor, w, {0.0f});
  ASSERT_TRUE(monitor.flush(30.0));
  set_failpoints("file.write=sleep:300@1");
  for (int i = 0; i < 200; ++i) {
    observe(monitor, w, {std::nanf("")});
    monitor.seal(Moment::after_step);
  }
  for (int i = 0; i < 100 && !monitor.flush(30.0); ++i) {
  }
  EXPECT_TRUE(monitor.flush(30.0));
  set_failpoints("");
  const std::size_t read = rows_in(scratch);
  const Health health = monitor.stop();
  ASSERT_GT(health.sinks.at(0).rows_dropped.count("queue_full"), 0u);
  EXPECT_EQ(static_cast<std::int64_t>(read), health.sinks.at(0).rows_written);
}

TEST(Flush, AFullQueueThatBlocksDoesNotHoldItUp) {
  const Scratch scratch;
  Config config = slow(scratch);
  config.queue_mb = 0.001;
  config.overflow = Overflow::block;
  config.stop_timeout_seconds = 30.0;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  observe(monitor, w, {0.0f});
  ASSERT_TRUE(monitor.flush(30.0));
  set_failpoints("file.write=sleep:20@1+");
  std::atomic<bool> is_done = false;
  std::thread trains([&] {
    for (int i = 0; i < 100; ++i) {
      observe(monitor, w, {1.0f});
      monitor.seal(Moment::after_step);
    }
    is_done = true;
  });
  while (!is_done) monitor.flush(0.01);
  trains.join();
  EXPECT_TRUE(monitor.flush(60.0));
  set_failpoints("");
  EXPECT_EQ(rows_in(scratch), 101u);
}

TEST(Flush, SeveralThreadsAskWhileOthersObserveAndOneStops) {
  const Scratch scratch;
  Config config = slow(scratch);
  config.queue_mb = 512.0;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  std::vector<std::thread> threads;
  std::atomic<int> refused = 0;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        observe(monitor, w, {1.0f});
        if (!monitor.flush(60.0)) ++refused;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(rows_in(scratch), 200u);
  threads.clear();
  for (int thread = 0; thread < 3; ++thread) threads.emplace_back([&] { monitor.flush(60.0); });
  threads.emplace_back([&] { monitor.stop(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(monitor.flush(0.0));
}

TEST(Flush, AfterAStopThatRanOutOfTimeNothingIsPromised) {
  const Scratch scratch;
  Config config = slow(scratch);
  config.stop_timeout_seconds = 0.05;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  observe(monitor, w, {1.0f});
  ASSERT_TRUE(monitor.flush(30.0));
  set_failpoints("file.write=sleep:1000@1");
  observe(monitor, w, {2.0f});
  monitor.stop();
  EXPECT_FALSE(monitor.flush(30.0));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // for the thread that was left
  set_failpoints("");
}

TEST(Flush, AForkedChildIsToldNo) {
  const Scratch scratch;
  Monitor monitor(slow(scratch), Identity{});
  monitor.add_optimizer(0);
  observe(monitor, series_of(monitor, "w"), {1.0f});
  const pid_t child = fork();
  if (child == 0) _exit(monitor.flush(5.0) ? 1 : 0);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace trainmon
