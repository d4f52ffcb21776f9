// The core without Python: a program of yours watches its own tensors. It links trainmon_monitor;
// tests/cpp/monitor.cmake builds and runs it.
#include <cmath>
#include <cstdio>
#include <vector>

#include "trainmon/first_bad.h"
#include "trainmon/monitor.h"
#include "trainmon/read.h"

int main(int argc, char** argv) {
  trainmon::Config config;
  config.out = argc > 1 ? argv[1] : "trainmon_runs/embed_cpp";
  trainmon::Monitor monitor(config, trainmon::identity_from_environment());
  const int optimizer = monitor.add_optimizer(0);

  trainmon::Series gradient;
  gradient.kind = trainmon::kind::kGradReduced;
  gradient.name = "weight";
  const trainmon::SeriesId series = monitor.add_series(gradient);

  std::vector<float> values(1000);
  const std::int64_t size = static_cast<std::int64_t>(values.size());
  for (int step = 0; step < 10; ++step) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = std::sin(static_cast<float>(i)) / static_cast<float>(step + 1);
    }
    if (step == 7) values[3] = std::nanf("");  // something to find
    trainmon::TensorView view;
    view.data = values.data();
    view.ndim = 1;
    view.sizes = &size;
    monitor.begin_attempt(optimizer);
    monitor.observe(series, view);
    monitor.end_attempt(optimizer, trainmon::Fate::taken, 1.0);
    monitor.seal(trainmon::Moment::after_step);
  }
  monitor.stop();

  const auto bad = trainmon::first_bad(trainmon::read_run(config.out));
  if (!bad) return 1;
  std::printf("first bad: %s %s at step %lld\n", bad->series.kind.c_str(), bad->series.name.c_str(),
              static_cast<long long>(bad->row.step));
  return bad->row.step == 7 ? 0 : 1;
}
