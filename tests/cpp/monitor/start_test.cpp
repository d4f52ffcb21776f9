// How a start keeps its files: the first step of a process that is killed in it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>

#include "base/failpoint.h"
#include "base/file.h"
#include "monitor_fixture.h"

namespace trainmon {
namespace {

using testing::observe;
using testing::Scratch;
using testing::series_of;

// Stands behind the sink that is tested: the rows have just reached the disk.
class KillAtFirstRow final : public Sink {
 public:
  std::string_view name() const override { return "kill"; }
  void open(const RunInfo&, const SeriesTable&) override {}
  void write(const RecordBatch& batch) override {
    if (batch.row_count() > 0) std::raise(SIGKILL);
  }
  void flush() override {}
  void close() override {}
};

// A process that goes on at step 100, and is killed when its first row is written.
void resume_and_die(Config config) {
  const pid_t child = fork();
  if (child == 0) {
    MonitorParts parts;
    parts.sinks.push_back(std::make_unique<KillAtFirstRow>());
    Monitor monitor(config, Identity{}, std::move(parts));
    monitor.add_optimizer(0);
    const SeriesId w = series_of(monitor, "w");
    monitor.set_start_step(0, 100);
    observe(monitor, w, {7.0f});
    monitor.seal(Moment::backward_end);
    pause();
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

class KilledInItsFirstStep : public ::testing::TestWithParam<const char*> {};

TEST_P(KilledInItsFirstStep, KeepsTheStepItBeganAt) {
  const Scratch scratch;
  Config config = scratch.config();
  config.sinks = {GetParam()};
  config.flush_seconds = 3600.0;
  {
    Monitor first(config, Identity{});
    first.add_optimizer(0);
    observe(first, series_of(first, "w"), {1.0f});
    first.begin_attempt(0);
    first.end_attempt(0, Fate::taken, 1.0);
  }
  resume_and_die(config);
  const std::filesystem::path resumed = scratch.path / "rank_00000" / "restart_0001";
  const auto run = nlohmann::json::parse(read_file(resumed / "run.json"));
  EXPECT_EQ(run["start_steps"], nlohmann::json::array({100}));
  if (config.sinks.front() != "log") return;
  const RunRows rows = read_run(scratch.path);
  ASSERT_EQ(rows.rows.size(), 2u);
  EXPECT_EQ(rows.rows[0].step, 0);
  EXPECT_EQ(rows.rows[0].state.max, 1.0);
  EXPECT_EQ(rows.rows[1].step, 100);
  EXPECT_EQ(rows.rows[1].state.max, 7.0);
}

INSTANTIATE_TEST_SUITE_P(Sinks, KilledInItsFirstStep, ::testing::Values("log", "csv", "sqlite"));

#if defined(TRAINMON_FAILPOINTS)

class AFullDiskFromTheFirstStepOn : public ::testing::TestWithParam<const char*> {};

TEST_P(AFullDiskFromTheFirstStepOn, GathersNoFiles) {
  const Scratch scratch;
  Config config = scratch.config();
  config.sinks = {GetParam()};
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  const auto step = [&](int number) {
    observe(monitor, w, {static_cast<float>(number)});
    monitor.begin_attempt(0);
    monitor.end_attempt(0, Fate::taken, 1.0);
    monitor.seal(Moment::after_step);
    EXPECT_TRUE(monitor.settle(10.0));
  };
  set_failpoints("file.write=errno:" + std::to_string(ENOSPC) + "@1+");
  for (int i = 0; i < 40; ++i) step(i);
  const auto files = [&] {
    const std::filesystem::recursive_directory_iterator all(scratch.path);
    return std::count_if(begin(all), end(all),
                         [](const auto& one) { return one.is_regular_file(); });
  };
  EXPECT_LE(files(), 8);
  set_failpoints("");
  for (int i = 40; i < 60; ++i) step(i);
  const Health health = monitor.stop();
  EXPECT_LE(files(), 12);
  EXPECT_GE(health.sinks.at(0).rows_written, 20);
  if (config.sinks.front() != "log") return;
  const RunRows rows = read_run(scratch.path);
  EXPECT_TRUE(rows.damage.empty());
  ASSERT_EQ(static_cast<std::int64_t>(rows.rows.size()), health.sinks.at(0).rows_written);
  EXPECT_EQ(rows.rows.back().state.max, 59.0);
}

INSTANTIATE_TEST_SUITE_P(Sinks, AFullDiskFromTheFirstStepOn,
                         ::testing::Values("log", "csv", "tensorboard"));

#endif

}  // namespace
}  // namespace trainmon
