// Two live runs in one directory: the second is refused, or takes a directory of its own.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "monitor_fixture.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;
using testing::observe;
using testing::Scratch;
using testing::series_of;

// A process that does `begin`, says so, and waits to be killed.
class Process {
 public:
  explicit Process(const std::function<void()>& begin) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      begin();
      (void)!::write(ends[1], "x", 1);
      while (true) pause();
    }
    close(ends[1]);
    char said = 0;
    EXPECT_EQ(::read(ends[0], &said, 1), 1) << "it ended at its start";
    close(ends[0]);
  }
  ~Process() { end(); }

  pid_t pid() const { return pid_; }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

// Never destroyed: the process is killed.
void watch(const Config& config, const Identity& identity = {}, MonitorParts parts = {}) {
  auto* const monitor = new Monitor(config, identity, std::move(parts));
  monitor->add_optimizer(0);
  observe(*monitor, series_of(*monitor, "w"), {1.0f});
}

std::string refusal_of(const Config& config, const Identity& identity = {},
                       MonitorParts parts = {}) {
  try {
    const Monitor monitor(config, identity, std::move(parts));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(LiveRuns, ASecondProcessIsRefusedUntilTheFirstIsGone) {
  const Scratch scratch;
  Process first([&] { watch(scratch.config()); });
  const std::string said = refusal_of(scratch.config());
  EXPECT_NE(said.find("process " + std::to_string(first.pid()) + " on "), std::string::npos)
      << said;
  EXPECT_NE(said.find(scratch.path.string()), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(scratch.path / "rank_00000" / "restart_0001"));
  first.end();
  EXPECT_EQ(refusal_of(scratch.config()), "");
  EXPECT_TRUE(fs::exists(scratch.path / "rank_00000" / "restart_0001"));
}

// The compatible faces write into folders of the peer's layout.
TEST(LiveRuns, AGivenDirectoryIsRefusedAsWell) {
  const Scratch scratch;
  const auto parts = [&] {
    MonitorParts given;
    given.directory = scratch.path / "output" / "rank0";
    return given;
  };
  Process first([&] { watch(Config{}, {}, parts()); });
  const std::string said = refusal_of(Config{}, {}, parts());
  EXPECT_NE(said.find("process " + std::to_string(first.pid()) + " on "), std::string::npos)
      << said;
  EXPECT_NE(said.find((scratch.path / "output" / "rank0").string()), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(scratch.path / "output" / "rank0" / "run.1.json"));
  first.end();
  EXPECT_EQ(refusal_of(Config{}, {}, parts()), "");
}

TEST(LiveRuns, WithoutLocksTheHolderIsFoundByItsProcess) {
  const Scratch scratch;
  set_failpoints("lock.file=errno:" + std::to_string(ENOLCK) + "@1+");
  Process first([&] { watch(scratch.config()); });
  const pid_t pid = first.pid();
  const std::string said = refusal_of(scratch.config());
  first.end();
  const std::string after = refusal_of(scratch.config());
  set_failpoints("");
  EXPECT_NE(said.find("process " + std::to_string(pid) + " on "), std::string::npos) << said;
  EXPECT_EQ(after, "");
}

TEST(LiveRuns, WithoutADirectoryOfItsOwnTheSecondTakesTheNext) {
  const Scratch scratch;
  const fs::path before = fs::current_path();
  fs::current_path(scratch.path);
  const LogHook hook = set_log_hook([](std::string_view) {});
  Process first([] { watch(Config{}); });
  {
    Monitor second(Config{}, Identity{});
    EXPECT_EQ(second.run().directory,
              scratch.path / "trainmon_runs" / "local-2" / "rank_00000" / "restart_0000");
  }
  set_log_hook(hook);
  fs::current_path(before);
}

// As workers of a data loader do: they have every descriptor of the process they were forked from.
TEST(LiveRuns, AForkedChildThatGoesOnKeepsNoLock) {
  const Scratch scratch;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Process first([&] {
    watch(scratch.config());
    const pid_t child = fork();
    if (child == 0) {
      while (true) pause();
    }
    (void)!::write(ends[1], &child, sizeof child);
  });
  pid_t child = -1;
  ASSERT_EQ(::read(ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  first.end();
  ASSERT_EQ(::kill(child, 0), 0);
  EXPECT_EQ(refusal_of(scratch.config()), "");
  ::kill(child, SIGKILL);
  close(ends[0]);
  close(ends[1]);
}

TEST(LiveRuns, MonitorsOfOneProcessShareAndTheLastLetsGo) {
  const Scratch scratch;
  Monitor first(scratch.config(), Identity{});
  Monitor second(scratch.config(), Identity{});
  EXPECT_EQ(second.run().restart, 1);
  first.stop();
  const auto outcome = [&] {
    const pid_t child = fork();
    if (child == 0) _exit(refusal_of(scratch.config()).empty() ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  EXPECT_EQ(outcome(), 1);
  second.stop();
  EXPECT_EQ(outcome(), 0);
}

void remove_all_in(const Scratch& scratch) {
  for (const auto& entry : fs::directory_iterator(scratch.path)) fs::remove_all(entry);
}

// The rows of a run have this value alone, each of so many, and health.json is that of their start.
void expect_only(const Scratch& scratch, float value, std::size_t rows) {
  const RunRows run = read_run(scratch.path);
  EXPECT_EQ(run.rows.size(), rows);
  for (const ReadRow& row : run.rows) EXPECT_EQ(row.state.max, value);
  EXPECT_TRUE(run.damage.empty());
  EXPECT_TRUE(run.incomplete.empty()) << run.incomplete.front();
}

// A notebook deletes the folder of a run that it has forgotten, and starts another one there.
TEST(LiveRuns, WhatIsWrittenAfterTheFolderBecameAnothersIsGivenUp) {
  const Scratch scratch;
  Config config = scratch.config();
  config.sinks = {"log", "csv", "sqlite"};
  Monitor old(config, Identity{});
  old.add_optimizer(0);
  const SeriesId of_old = series_of(old, "w");
  observe(old, of_old, {8000.0f});
  EXPECT_TRUE(old.flush(30.0));
  remove_all_in(scratch);
  Monitor fresh(config, Identity{});
  EXPECT_EQ(fresh.run().restart, 0);
  fresh.add_optimizer(0);
  const SeriesId of_fresh = series_of(fresh, "w");
  for (int i = 0; i < 3; ++i) {
    observe(old, of_old, {8000.0f});
    EXPECT_FALSE(old.flush(30.0));
    observe(fresh, of_fresh, {8.0f});
    EXPECT_TRUE(fresh.flush(30.0));
  }
  EXPECT_TRUE(fresh.stop().errors == 0);
  observe(old, of_old, {8000.0f});  // the folder has no live run any more, and is still another's
  EXPECT_FALSE(old.flush(30.0));
  const Health health = old.stop();
  for (const SinkHealth& sink : health.sinks) {
    EXPECT_EQ(sink.rows_dropped, (std::map<std::string, std::int64_t>{{"another_run", 4}}));
  }
  expect_only(scratch, 8.0f, 3);
  EXPECT_FALSE(fs::exists(scratch.path / "rank_00000" / "restart_0000" / "log-000001.tmlog"));
}

TEST(LiveRuns, ARunOfAnotherProcessKeepsTheFolderThatItFound) {
  const Scratch scratch;
  const Scratch signs;
  Process old([&] {
    std::thread([&] {
      Monitor monitor(scratch.config(), Identity{});
      monitor.add_optimizer(0);
      const SeriesId w = series_of(monitor, "w");
      observe(monitor, w, {8000.0f});
      monitor.flush(30.0);
      fs::create_directory(signs.path / "written");
      while (!fs::exists(signs.path / "go on")) std::this_thread::yield();
      observe(monitor, w, {8000.0f});
      monitor.flush(30.0);
      monitor.stop();
      fs::create_directory(signs.path / "stopped");
      while (true) pause();
    }).detach();
    while (!fs::exists(signs.path / "written")) std::this_thread::yield();
  });
  remove_all_in(scratch);
  Monitor fresh(scratch.config(), Identity{});
  fresh.add_optimizer(0);
  observe(fresh, series_of(fresh, "w"), {8.0f});
  EXPECT_TRUE(fresh.flush(30.0));
  fs::create_directory(signs.path / "go on");
  while (!fs::exists(signs.path / "stopped")) std::this_thread::yield();
  fresh.stop();
  expect_only(scratch, 8.0f, 1);
}

// The folder is made again, and with it the lock.
TEST(LiveRuns, ADeletedFolderStaysThatOfItsRunWhereNobodyElseBegins) {
  const Scratch scratch;
  Monitor monitor(scratch.config(), Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  observe(monitor, w, {1.0f});
  EXPECT_TRUE(monitor.flush(30.0));
  remove_all_in(scratch);
  observe(monitor, w, {2.0f});
  EXPECT_TRUE(monitor.flush(30.0));
  const pid_t child = fork();
  if (child == 0) _exit(refusal_of(scratch.config()).empty() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 1) << "a second run may begin there";
  monitor.stop();
  EXPECT_EQ(read_run(scratch.path).rows.size(), 1u);
}

// The open file went with the folder.
TEST(LiveRuns, ACopyInThePlaceOfAMovedFolderIsNoOthers) {
  const Scratch scratch, aside;
  Monitor monitor(scratch.config(), Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  observe(monitor, w, {1.0f});
  EXPECT_TRUE(monitor.flush(30.0));
  fs::rename(scratch.path / "rank_00000", aside.path / "rank_00000");
  fs::copy(aside.path / "rank_00000", scratch.path / "rank_00000", fs::copy_options::recursive);
  observe(monitor, w, {2.0f});
  EXPECT_TRUE(monitor.flush(30.0));
  EXPECT_EQ(monitor.stop().sinks[0].rows_dropped.size(), 0u);
  EXPECT_EQ(read_run(aside.path).rows.size(), 2u);
}

TEST(LiveRuns, ARestartOfTheSameLaunchIsNeverRefused) {
  const Scratch scratch;
  Identity identity;
  identity.run_id = "job";
  Process dying([&] { watch(scratch.config(), identity); });
  identity.restart_count = 1;
  EXPECT_EQ(refusal_of(scratch.config(), identity), "");
}

TEST(LiveRuns, ALaunchWithMoreProcessesIsRefusedAsAWhole) {
  const Scratch scratch;
  Identity identity;
  identity.run_id = "one";
  Process first([&] { watch(scratch.config(), identity); });
  identity.rank = 1;
  identity.world_size = 2;
  EXPECT_EQ(refusal_of(scratch.config(), identity), "");
  identity.run_id = "another";
  EXPECT_NE(refusal_of(scratch.config(), identity), "");
}

}  // namespace
}  // namespace trainmon
