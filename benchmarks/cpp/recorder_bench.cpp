// What the flight recorder adds to a row: a step of 100 tensors of 1,000 elements, with and
// without. The smallest of many turns, which go one after the other, so that both see the same
// machine.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lines.h"
#include "trainmon/monitor.h"

namespace {

using namespace trainmon;

constexpr int kTensors = 100, kElements = 1000;

struct Watched {
  std::unique_ptr<Monitor> monitor;
  std::vector<SeriesId> series;
  double best_ns = 1e300;
};

Watched watched(const std::filesystem::path& out, double recorder_mb) {
  Config config;
  config.out = out;
  config.sinks = {};
  config.recorder_mb = recorder_mb;
  Watched made{std::make_unique<Monitor>(config, Identity{}), {}};
  made.monitor->add_optimizer(0);
  for (int i = 0; i < kTensors; ++i) {
    Series series;
    series.kind = "grad_reduced";
    series.name = "layers." + std::to_string(i);
    made.series.push_back(made.monitor->add_series(series));
  }
  return made;
}

void turn(Watched& one, const TensorView& tensor) {
  const auto begin = std::chrono::steady_clock::now();
  for (const SeriesId series : one.series) one.monitor->observe(series, tensor);
  one.monitor->begin_attempt(0);
  one.monitor->end_attempt(0, Fate::taken, 1.0);
  const auto end = std::chrono::steady_clock::now();
  one.monitor->seal(Moment::after_step);
  one.best_ns =
      std::min(one.best_ns, std::chrono::duration<double, std::nano>(end - begin).count());
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = std::atoi(bench::take_argument(argc, argv, "--rounds", "400").c_str());
  const std::string json = bench::take_argument(argc, argv, "--json", "");
  if (argc != 1) {
    std::fprintf(stderr, "usage: recorder_bench [--rounds N] [--json FILE]\n");
    return 2;
  }
  const std::filesystem::path out =
      std::filesystem::temp_directory_path() / ("trainmon_bench_" + std::to_string(::getpid()));
  const std::vector<float> values(kElements, 0.5f);
  const std::int64_t size = kElements;
  TensorView tensor;
  tensor.data = values.data();
  tensor.ndim = 1;
  tensor.sizes = &size;
  {
    Watched without = watched(out / "without", 0.0), with = watched(out / "with", 64.0);
    if (!with.monitor->has_recorder()) return 1;
    for (int i = 0; i < rounds; ++i) {
      turn(without, tensor);
      turn(with, tensor);
    }
    const double before = without.best_ns / kTensors, after = with.best_ns / kTensors;
    std::printf(
        "a row of %d elements: %.0f ns with a flight recorder, %.0f ns without, ratio %.2f\n",
        kElements, after, before, after / before);
    bench::write_lines(json,
                       {{"a row with a flight recorder", after, "ns", "the same without", before}});
  }
  std::error_code ignored;
  std::filesystem::remove_all(out, ignored);
  return 0;
}
