// The whole core in one process: observe, stop, read back; restarts, late values, odd uses.
#include "trainmon/monitor.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "monitor_fixture.h"
#include "sinks/grad_probe.h"

namespace trainmon {
namespace {

using testing::observe;
using testing::Scratch;
using testing::series_of;

void step(Monitor& monitor, Fate fate = Fate::taken) {
  monitor.begin_attempt(0);
  monitor.end_attempt(0, fate, 1.0);
  monitor.seal(Moment::after_step);
}

TEST(Monitor, WhatIsObservedCanBeReadBack) {
  const Scratch scratch;
  Monitor monitor(scratch.config(), Identity{});
  monitor.add_optimizer(100);
  const SeriesId w = series_of(monitor, "w");
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(observe(monitor, w, {3.0f, -4.0f, static_cast<float>(i)}), Observed::recorded);
    step(monitor);
  }
  const Health health = monitor.stop();
  EXPECT_EQ(health.rows_produced, 5);
  EXPECT_EQ(health.sinks.at(0).rows_written, 5);
  const RunRows rows = read_run(scratch.path);
  ASSERT_EQ(rows.rows.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(rows.rows[i].step, 100 + static_cast<std::int64_t>(i));
    EXPECT_EQ(rows.rows[i].fate, Fate::taken);
    const double x = static_cast<double>(i);
    EXPECT_DOUBLE_EQ(derive(Stat::norm, rows.rows[i].state), std::sqrt(25.0 + x * x));
  }
  EXPECT_EQ(monitor.latest().size(), 1u);
}

// Names without end: rows and values beyond the limits are counted, what was there before goes on.
TEST(Monitor, SeriesAndScalarsBeyondTheirLimitsAreCounted) {
  const Scratch scratch;
  Config config = scratch.config();
  config.sinks = {"log", "csv", "sqlite", "tensorboard"};
  config.max_series = 5;
  config.max_scalars = 5;
  config.checks = true;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  constexpr int kSteps = 50;
  const SeriesId w = series_of(monitor, "w");
  for (int i = 0; i < kSteps; ++i) {
    const std::string name = "w" + std::to_string(i);
    const SeriesId other = series_of(monitor, name);
    observe(monitor, other, {7.0f});
    observe(monitor, w, {1.0f, static_cast<float>(i)});
    const std::vector<std::int64_t> sizes = {2};
    monitor.add_late_row(other, DType::float32, sizes, i, 0, 0, 0);
    monitor.add_late_row(w, DType::float32, sizes, i, 0, 0, 0);
    RowState one, two;
    one.count = 1;
    two.count = 2;
    monitor.fulfil(monitor.seal_late(), std::vector<RowState>{one, two});
    Payload payload;
    payload.key.series = other;
    payload.bytes = {std::byte{1}, std::byte{2}};
    monitor.add_payload(std::move(payload));
    monitor.add_scalar("loss", i);
    monitor.add_scalar("loss_" + std::to_string(i), i);
    step(monitor);
  }
  EXPECT_EQ(monitor.series().size(), 6u);
  const Health health = monitor.stop();
  // Of w and of w0 to w3, whose rows are three in a step.
  constexpr std::int64_t kKept = 2 * kSteps + 3 * 4, kBeyond = 3 * (kSteps - 4);
  EXPECT_EQ(health.rows_produced, kKept + kBeyond);
  ASSERT_EQ(health.sinks.size(), 4u);
  for (const SinkHealth& sink : health.sinks) {
    const std::map<std::string, std::int64_t> beyond = {{"max_series", kBeyond}};
    EXPECT_EQ(sink.rows_dropped, beyond) << sink.name;
    EXPECT_EQ(sink.rows_written, kKept) << sink.name;
  }
  const std::map<std::string, std::int64_t> values = {{"max_scalars", kSteps - 4}};
  EXPECT_EQ(health.scalars_dropped, values);
  const RunRows run = read_run(scratch.path);
  EXPECT_TRUE(run.damage.empty());
  ASSERT_EQ(run.rows.size(), static_cast<std::size_t>(kKept - 4));
  std::map<std::string, int> rows;
  for (const auto& row : run.rows) {
    const std::string& name = run.series[row.series].name;
    ++rows[name];
    const double count = name == "w" ? 2 : 1;
    EXPECT_EQ(derive(Stat::count, row.state), count) << name;
  }
  const std::map<std::string, int> expected = {
      {"w", 2 * kSteps}, {"w0", 2}, {"w1", 2}, {"w2", 2}, {"w3", 2}};
  EXPECT_EQ(rows, expected);
  ASSERT_EQ(run.incomplete.size(), 1u);
  EXPECT_EQ(run.incomplete[0], "rank 0: 138 rows were dropped (max_series 138)");
}

TEST(Monitor, ASkippedStepIsAnotherAttempt) {
  const Scratch scratch;
  Monitor monitor(scratch.config(), Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  observe(monitor, w, {1.0f});
  monitor.abandon_window(0, Fate::skipped, 1024.0);
  observe(monitor, w, {2.0f});
  step(monitor);
  monitor.stop();
  const RunRows rows = read_run(scratch.path);
  ASSERT_EQ(rows.rows.size(), 2u);
  EXPECT_EQ(rows.rows[0].step, 0);
  EXPECT_EQ(rows.rows[0].attempt, 0);
  EXPECT_EQ(rows.rows[0].fate, Fate::skipped);
  EXPECT_EQ(rows.rows[0].loss_scale, 1024.0);
  EXPECT_EQ(rows.rows[1].step, 0);
  EXPECT_EQ(rows.rows[1].attempt, 1);
}

// A restart repeats steps: readers show the newest of each, and all when asked.
TEST(Monitor, ARestartThatRepeatsStepsGivesOneTimeline) {
  const Scratch scratch;
  for (int restart = 0; restart < 2; ++restart) {
    Monitor monitor(scratch.config(), Identity{});
    monitor.add_optimizer(restart == 0 ? 0 : 3);
    const SeriesId w = series_of(monitor, "w");
    for (int i = 0; i < 5; ++i) {
      observe(monitor, w, {static_cast<float>(restart)});
      step(monitor);
    }
  }
  const RunRows newest = read_run(scratch.path);
  ASSERT_EQ(newest.rows.size(), 8u);
  for (const ReadRow& row : newest.rows) {
    EXPECT_EQ(row.restart, row.step < 3 ? 0 : 1) << row.step;
    EXPECT_EQ(row.state.max, row.step < 3 ? 0.0 : 1.0);
  }
  ReadOptions options;
  options.all_restarts = true;
  EXPECT_EQ(read_run(scratch.path, options).rows.size(), 10u);
}

TEST(Monitor, LateValuesReachTheFile) {
  const Scratch scratch;
  Monitor monitor(scratch.config(), Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  monitor.add_late_row(w, DType::bfloat16, {}, 0, 0, 0, 0);
  const std::int64_t ticket = monitor.seal_late();
  observe(monitor, w, {1.0f});
  step(monitor);
  RowState state;
  state.count = 9;
  state.nans = 2;
  monitor.fulfil(ticket, std::vector<RowState>{state});
  const Health health = monitor.stop();
  EXPECT_EQ(health.sinks.at(0).rows_written, 2);
  const RunRows rows = read_run(scratch.path);
  ASSERT_EQ(rows.rows.size(), 2u);
  EXPECT_EQ(rows.rows[0].state.count, 9);
  EXPECT_TRUE(rows.rows[0].flags & flag::kNonFinite);
  EXPECT_EQ(rows.alerts.size(), 1u);
}

TEST(Monitor, ValuesThatNeverComeAreCountedNotLost) {
  const Scratch scratch;
  Config config = scratch.config();
  config.stop_timeout_seconds = 2.0;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  monitor.add_late_row(series_of(monitor, "w"), DType::float32, {}, 0, 0, 0, 0);
  monitor.seal_late();
  EXPECT_EQ(monitor.stop().sinks.at(0).rows_written, 1);
  const RunRows rows = read_run(scratch.path);
  ASSERT_EQ(rows.rows.size(), 1u);
  EXPECT_TRUE(rows.rows[0].flags & flag::kNotReady);
}

// A rank that hangs in a collective: nobody seals, the interval does.
TEST(Monitor, WhatWasSeenBeforeAHangIsOnDisk) {
  const Scratch scratch;
  Config config = scratch.config();
  config.flush_seconds = 0.05;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  observe(monitor, series_of(monitor, "w"), {1.0f});
  std::size_t rows = 0;
  for (int i = 0; i < 400 && rows == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    rows = read_run(scratch.path).rows.size();
  }
  EXPECT_EQ(rows, 1u);
}

// Somebody deletes the run while it goes on: everything a reader needs comes back.
TEST(Monitor, ADeletedDirectoryIsMadeAgain) {
  const Scratch scratch;
  Config config = scratch.config();
  config.flush_seconds = 0.02;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  observe(monitor, w, {1.0f});
  step(monitor);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  // All at once: the writer thread would put new files into a directory that is being emptied.
  const std::filesystem::path deleted = scratch.path.native() + "-deleted";
  std::filesystem::rename(scratch.path, deleted);
  std::filesystem::remove_all(deleted);
  for (int i = 0; i < 20; ++i) {
    observe(monitor, w, {2.0f});
    step(monitor);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  monitor.stop();
  EXPECT_TRUE(std::filesystem::exists(monitor.run().directory / "run.json"));
  EXPECT_TRUE(std::filesystem::exists(monitor.run().directory / "health.json"));
  const RunRows rows = read_run(scratch.path);
  EXPECT_FALSE(rows.rows.empty());
  EXPECT_EQ(rows.rows.back().step, 20);
}

TEST(Monitor, ABadConfigNamesEveryFault) {
  const Scratch scratch;
  Config config = scratch.config();
  config.flush_seconds = -1;
  config.threads = 0;
  try {
    Monitor monitor(config, Identity{});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.faults().size(), 2u) << error.what();
  }
}

TEST(Monitor, ADirectoryThatCannotBeMadeIsAClearError) {
  Config config;
  config.out = "/proc/trainmon-cannot-be-here";
  try {
    Monitor monitor(config, Identity{});
    FAIL() << "accepted";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("/proc/trainmon-cannot-be-here"), std::string::npos);
  }
}

TEST(Monitor, AfterStopNothingHappens) {
  const Scratch scratch;
  Monitor monitor(scratch.config(), Identity{});
  monitor.add_optimizer(0);
  const SeriesId w = series_of(monitor, "w");
  const Health first = monitor.stop();
  EXPECT_EQ(observe(monitor, w, {1.0f}), Observed::idle);
  EXPECT_FALSE(monitor.recording(0));
  EXPECT_EQ(monitor.seal_late(), 0);
  EXPECT_EQ(monitor.stop().rows_produced, first.rows_produced);
}

TEST(Monitor, AnotherDeviceIsTheCallersBusiness) {
  const Scratch scratch;
  Monitor monitor(scratch.config(), Identity{});
  monitor.add_optimizer(0);
  TensorView view;
  view.device = Device::cuda;
  EXPECT_EQ(monitor.observe(series_of(monitor, "w"), view), Observed::elsewhere);
}

TEST(Monitor, TheMemorySinkKeepsBatches) {
  const Scratch scratch;
  Config config = scratch.config();
  config.sinks = {"memory"};
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  observe(monitor, series_of(monitor, "w"), {1.0f});
  monitor.seal(Moment::before_step);
  monitor.stop();
  const auto batches = monitor.memory();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].rows.size(), 1u);
}

// A forked child (a DataLoader worker) records nothing, writes nothing and ends without a hang.
TEST(Monitor, AForkedChildIsQuiet) {
  const Scratch scratch;
  Config config = scratch.config();
  config.flush_seconds = 0.01;
  auto monitor = std::make_unique<Monitor>(config, Identity{});
  monitor->add_optimizer(0);
  const SeriesId w = series_of(*monitor, "w");
  std::jthread producer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      observe(*monitor, w, {1.0f});
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  const float one = 1.0f;
  TensorView tensor;
  tensor.data = &one;
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      bool quiet = monitor->observe(w, tensor) == Observed::idle && !monitor->recording(0);
      monitor->seal(Moment::stop);
      monitor->part_failed("child", "must not appear");
      monitor->health();
      monitor->stop();
#if !defined(__SANITIZE_ADDRESS__)
      // Up to GCC 13 libasan does not guard its allocator over fork(): a child of a process with
      // threads may find it locked for good as soon as it frees something.
      monitor.reset();
#endif
      _exit(quiet ? 0 : 1);
    }
    int status = 0;
    for (int wait = 0; waitpid(child, &status, WNOHANG) == 0; ++wait) {
      if (wait > 5000) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        FAIL() << "child " << i << " hung";
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
  producer.request_stop();
  producer.join();
  const Health health = monitor->stop();
  EXPECT_EQ(health.rows_produced, health.sinks.at(0).rows_written);
  EXPECT_TRUE(health.parts_off.empty());
  EXPECT_EQ(static_cast<std::int64_t>(read_run(scratch.path).rows.size()), health.rows_produced);
}

// 64 processes start in one directory in the same second and never share a file.
TEST(Monitor, SixtyFourRanksInOneDirectory) {
  const Scratch scratch;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 64; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        Identity identity;
        identity.rank = rank;
        identity.world_size = 64;
        Config config = scratch.config();
        config.every = 1;
        Monitor monitor(config, identity);
        monitor.add_optimizer(0);
        const SeriesId w = series_of(monitor, "w");
        for (int i = 0; i < 20; ++i) {
          observe(monitor, w, {static_cast<float>(rank)});
          step(monitor);
        }
        const Health health = monitor.stop();
        _exit(health.sinks.at(0).rows_written == 20 ? 0 : 1);
      } catch (...) {
        _exit(2);
      }
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  const RunRows rows = read_run(scratch.path);
  EXPECT_TRUE(rows.damage.empty());
  ASSERT_EQ(rows.rows.size(), 64u * 20u);
  for (const ReadRow& row : rows.rows) EXPECT_EQ(row.state.max, static_cast<double>(row.rank));
}

TEST(Monitor, AProbeIsOneBatchAndItsTensorsCountAsRows) {
  const Scratch scratch;
  Config config = scratch.config();
  config.sinks = {"memory"};
  config.flush_seconds = 0.001;  // seals of the writer thread never part it
  GradProbeOptions options;
  options.request.signs = Signs::positive;
  MonitorParts parts;
  parts.directory = scratch.path / "rank0";
  parts.sinks.push_back(make_grad_probe_sink(options));
  Monitor monitor(config, Identity{}, std::move(parts));
  const std::vector<float> values(100000, 1.0f);
  const auto size = static_cast<std::int64_t>(values.size());
  const TensorView view{.data = values.data(), .ndim = 1, .sizes = &size};
  std::vector<ProbeItem> items;
  for (const char* name : {"a", "b", "c"}) items.push_back({series_of(monitor, name), view});
  for (std::int64_t at = 0; at < 20; ++at) monitor.probe(items, at, options.request);
  const Health health = monitor.stop();
  EXPECT_EQ(health.rows_produced, 60);
  for (const SinkHealth& sink : health.sinks) EXPECT_EQ(sink.rows_written, 60) << sink.name;
  std::int64_t at = 0;
  for (const RecordBatch& batch : monitor.memory()) {
    ASSERT_EQ(batch.payloads.size(), 3u);
    for (const Payload& payload : batch.payloads) {
      EXPECT_EQ(payload.type, PayloadType::probe);
      EXPECT_EQ(payload.key.window, at);
    }
    EXPECT_LT(batch.payloads[0].key.seq, batch.payloads[2].key.seq);
    ++at;
    const std::string step = std::to_string(at - 1);
    EXPECT_TRUE(std::filesystem::exists(scratch.path / "rank0" / ("step" + step) / "c.sign"));
  }
  EXPECT_EQ(at, 20);
}

TEST(Monitor, WhatCannotBeProbedIsToldAndNothingIsThrown) {
  const Scratch scratch;
  Monitor monitor(scratch.config(), Identity{});
  const float value = 1.0f;
  ProbeItem item{series_of(monitor, "w"), {.data = &value}};
  ProbeRequest request;
  request.intervals = true;
  request.bounds = {1.0, 0.0};
  monitor.probe({&item, 1}, 0, request);
  item.tensor.device = Device::cuda;
  monitor.probe({&item, 1}, 1, {});
  const Health health = monitor.stop();
  EXPECT_EQ(health.rows_produced, 0);
  EXPECT_EQ(health.parts_off.count("probe"), 1u);
  EXPECT_EQ(health.errors, 2);
}

TEST(Monitor, WhatItsFunctionsDoNotAllowIsToldAndNothingIsThrown) {
  const Scratch scratch;
  Config config = scratch.config();
  config.checks = true;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  const float value = 1.0f;
  const TensorView scalar{.data = &value};
  const SeriesId known = series_of(monitor, "w");
  EXPECT_EQ(observe(monitor, known, {1.0f}), Observed::recorded);
  for (const SeriesId unknown : {known + 1, SeriesId{5000}, SeriesId{2'000'000'000}}) {
    const auto series = static_cast<SeriesId>(unknown);
    EXPECT_EQ(monitor.observe(series, scalar), Observed::refused);
    EXPECT_EQ(monitor.observe_scaled(series, scalar, 2.0), Observed::refused);
    EXPECT_EQ(monitor.observe_sample(series, scalar, 0, 0, 0, 4), Observed::refused);
    EXPECT_EQ(monitor.observe_input(series, known, scalar, 0, 0, 0), Observed::refused);
    EXPECT_EQ(monitor.checked_from(series, scalar), std::nullopt);
    monitor.add_late_row(series, DType::float32, {}, 0, 0, 0, 0);
    Payload payload;
    payload.key.series = series;
    monitor.add_payload(payload);
    monitor.add_payload_at(payload);
    const ProbeItem item{series, scalar};
    monitor.probe({&item, 1}, 0, {});
  }
  EXPECT_EQ(monitor.observe_again(known, scalar, 0, 0, 0, 0, Reading{}), Observed::refused);
  for (const int ndim : {-1, 1, 65}) {
    EXPECT_EQ(monitor.observe(known, {.data = &value, .ndim = ndim}), Observed::refused);
  }
  const std::vector<SeriesId> series(3, known);
  const std::vector<TensorView> tensors(2, scalar);
  std::vector<Observed> became(2);
  monitor.observe_all(series, tensors, became);
  monitor.observe_all({series.data(), 1}, tensors, became);
  monitor.observe_all({series.data(), 2}, tensors, {became.data(), 1});
  EXPECT_EQ(became.front(), Observed::idle);
  const Health health = monitor.stop();
  EXPECT_EQ(health.rows_produced, 1);
  EXPECT_GT(health.errors, 0);

  MonitorParts of_rules, of_sinks;
  of_rules.rules.push_back(nullptr);
  of_sinks.sinks.push_back(nullptr);
  EXPECT_THROW(Monitor(config, Identity{}, std::move(of_rules)), std::invalid_argument);
  EXPECT_THROW(Monitor(config, Identity{}, std::move(of_sinks)), std::invalid_argument);
}

class SinkThatThrows final : public Sink {
 public:
  std::string_view name() const override { return "mine"; }
  void open(const RunInfo&, const SeriesTable&) override {}
  void write(const RecordBatch&) override { throw 1; }
  void flush() override { throw 2; }
  void close() override { throw 3; }
  std::map<std::string, std::int64_t> rows_left_out() const override { throw std::bad_alloc(); }
};

TEST(Monitor, ASinkOfTheUserMayThrowEverywhere) {
  const Scratch scratch;
  MonitorParts parts;
  parts.sinks.push_back(std::make_unique<SinkThatThrows>());
  Monitor monitor(scratch.config(), Identity{}, std::move(parts));
  monitor.add_optimizer(0);
  observe(monitor, series_of(monitor, "w"), {1.0f});
  step(monitor);
  EXPECT_EQ(monitor.health().sinks.size(), 2u);
  const Health health = monitor.stop();
  EXPECT_EQ(health.sinks.at(0).rows_written, 1);
  EXPECT_EQ(health.sinks.at(1).rows_written, 0);
}

TEST(Monitor, ProducersSealsAndStopMayMeet) {
  for (int round = 0; round < 20; ++round) {
    const Scratch scratch;
    Config config = scratch.config();
    config.flush_seconds = 0.001;
    Monitor monitor(config, Identity{});
    monitor.add_optimizer(0);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const SeriesId id = series_of(monitor, "t" + std::to_string(t));
        for (int i = 0; i < 200; ++i) {
          observe(monitor, id, {static_cast<float>(i)});
          if (i % 20 == 0) monitor.seal(Moment::backward_end);
          if (i % 50 == 0) monitor.health();
          monitor.on_backward(0, i);
        }
      });
    }
    if (round % 2 == 0) monitor.stop();
    for (auto& thread : threads) thread.join();
    const Health health = monitor.stop();
    std::int64_t accounted = health.sinks.at(0).rows_written;
    for (const auto& [reason, rows] : health.sinks.at(0).rows_dropped) accounted += rows;
    EXPECT_EQ(accounted, health.rows_produced);
  }
}

}  // namespace
}  // namespace trainmon
