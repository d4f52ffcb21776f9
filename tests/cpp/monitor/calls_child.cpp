// A small run with every sink, for the calls of it to fail: calls_child OUT STEPS [FSYNC].
// Ends with 0 and an account on standard output ("SINK PRODUCED WRITTEN DROPPED GONE" a line), with
// 3 where the start was refused, with 4 where something raised after it.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "trainmon/monitor.h"

namespace {

using namespace trainmon;

constexpr int kSeries = 4;

Config config_of(int count, char** arguments) {
  Config config;
  config.out = arguments[1];
  config.sinks = {"log", "csv", "sqlite", "tensorboard"};
  config.segment_mb = 0.004;
  config.flush_seconds = 0.01;
  config.stop_timeout_seconds = 20.0;
  config.alert_limit = 1e6;
  config.recorder_mb = 0.05;
  if (count > 3) config.fsync = arguments[3];
  return config;
}

std::unique_ptr<Monitor> started(const Config& config) {
  try {
    auto monitor = std::make_unique<Monitor>(config, Identity{});
    monitor->add_optimizer(0);
    return monitor;
  } catch (const std::exception& error) {
    std::printf("refused: %s\n", error.what());
    return nullptr;
  }
}

// Every row has another value, and they ascend in the order of rows.
void train(Monitor& monitor, int steps, const std::string& out) {
  std::vector<SeriesId> ids;
  for (int i = 0; i < kSeries; ++i) {
    Series series;
    series.kind = "grad_reduced";
    series.name = "layers." + std::to_string(i);
    ids.push_back(monitor.add_series(series));
  }
  float value = 0.0f;
  for (int step = 0; step < steps; ++step) {
    for (const SeriesId id : ids) {
      value += 1.0f;
      const float element = step == steps / 2 && id == ids.back() ? NAN : value;
      const std::int64_t size = 1;
      TensorView view;
      view.data = &element;
      view.ndim = 1;
      view.sizes = &size;
      monitor.observe(id, view);
    }
    monitor.begin_attempt(0);
    monitor.add_scalar("loss", 1.0 / (1 + step));
    monitor.end_attempt(0, Fate::taken, 1.0);
    monitor.seal(Moment::after_step);
    monitor.settle(20.0);
    // A mark for whoever records the calls: what was handed over so far is in the files.
    const std::string mark = out + "/flushed_" + std::to_string(kSeries * (step + 1));
    if (step % 4 == 3 && monitor.flush(20.0)) ::access(mark.c_str(), F_OK);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 2;
  set_log_hook([](std::string_view) {});
  const std::unique_ptr<Monitor> monitor = started(config_of(count, arguments));
  if (!monitor) return 3;
  Health health;
  try {
    train(*monitor, std::atoi(arguments[2]), arguments[1]);
    health = monitor->stop();
  } catch (const std::exception& error) {
    std::printf("raised: %s\n", error.what());
    return 4;
  }
  for (const SinkHealth& sink : health.sinks) {
    long long dropped = 0;
    for (const auto& [reason, rows] : sink.rows_dropped) dropped += rows;
    std::printf("%s %lld %lld %lld %lld\n", sink.name.c_str(),
                static_cast<long long>(health.rows_produced),
                static_cast<long long>(sink.rows_written), dropped,
                static_cast<long long>(sink.rows_deleted + sink.rows_expired));
  }
  return 0;
}
