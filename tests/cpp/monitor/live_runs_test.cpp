// Two live runs in one directory: the second is refused, or takes a directory of its own.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
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
