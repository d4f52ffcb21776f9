// Child of the kill loop: two threads produce rows until somebody kills it, and tells through a
// pipe which sequence number has been sealed and how many rows have been flushed. Usage: kill_child
// RUN FD FLUSH_SECONDS SINK.
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kill_report.h"
#include "sqlite_faults.h"
#include "trainmon/monitor.h"

namespace {

// Three equal elements, so that a reader can tell a true row from a damaged one.
void observe(trainmon::Monitor& monitor, trainmon::SeriesId series, int number) {
  const std::vector<float> values(3, static_cast<float>(number));
  const std::int64_t size = 3;
  trainmon::TensorView view;
  view.data = values.data();
  view.ndim = 1;
  view.sizes = &size;
  monitor.observe_at(series, view, 0, 0, number);
}

// Stands behind the sink that is tested, and so is flushed after it.
class FlushReport final : public trainmon::Sink {
 public:
  // A tensorboard sink keeps the rows of the first step until it ends: until then a checkpoint may
  // change its number.
  FlushReport(int fd, bool waits_for_step) : fd_(fd), waits_(waits_for_step) {}
  std::string_view name() const override { return "flush_report"; }
  void open(const trainmon::RunInfo&, const trainmon::SeriesTable&) override {}
  void write(const trainmon::RecordBatch& batch) override {
    rows_ += static_cast<std::uint64_t>(batch.row_count());
    waits_ = waits_ && batch.outcomes.empty();
  }
  void flush() override {
    const KillReport report{monotonic_ns(), 0, waits_ ? 0 : rows_};
    (void)!::write(fd_, &report, sizeof report);
  }
  void close() override {}

 private:
  const int fd_;
  bool waits_;
  std::uint64_t rows_ = 0;
};

trainmon::SeriesId series_of(trainmon::Monitor& monitor, const std::string& name) {
  trainmon::Series series;
  series.kind = "grad_reduced";
  series.name = name;
  return monitor.add_series(series);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int report_fd = std::atoi(argv[2]);
  trainmon::Config config;
  config.out = argv[1];
  config.flush_seconds = std::atof(argv[3]);
  config.segment_mb = 0.0625;
  config.sinks = {argv[4]};
#if defined(TRAINMON_FAILPOINTS)
  trainmon::install_sqlite_faults();
#endif
  trainmon::MonitorParts parts;
  parts.sinks.push_back(
      std::make_unique<FlushReport>(report_fd, config.sinks.front() == "tensorboard"));
  trainmon::Monitor monitor(config, trainmon::Identity{}, std::move(parts));
  monitor.add_optimizer(0);

  std::atomic<bool> go_on{true};
  std::thread backward([&] {
    for (int i = 0; go_on; ++i) {
      observe(monitor, series_of(monitor, "backward." + std::to_string(i % 40)), i);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  for (int step = 0; step < 100000; ++step) {
    for (int i = 0; i < 20; ++i) {
      observe(monitor, series_of(monitor, "forward." + std::to_string(i)), step);
    }
    monitor.begin_attempt(0);
    monitor.end_attempt(0, trainmon::Fate::taken, 1.0);
    // Every row counted so far is in a buffer, so the seal below takes it.
    KillReport report;
    report.sealed = static_cast<std::uint64_t>(monitor.health().rows_produced);
    monitor.seal(trainmon::Moment::after_step);
    report.time_ns = monotonic_ns();
    if (write(report_fd, &report, sizeof report) != sizeof report) break;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  go_on = false;
  backward.join();
  monitor.stop();
  return 0;
}
