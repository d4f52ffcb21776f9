// How a start keeps its files: the first step of a process that is killed in it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>

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

}  // namespace
}  // namespace trainmon
