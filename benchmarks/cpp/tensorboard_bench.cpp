// What the sink `tensorboard` takes for steps of many tensors, four scalars each:
//   tensorboard_bench DIRECTORY TENSORS STEPS   prints one JSON object: median milliseconds per
//   step
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "sinks/sinks.h"

namespace {

using namespace trainmon;
using Clock = std::chrono::steady_clock;

class Listed : public SeriesTable {
 public:
  std::deque<Series> list;
  const Series& at(SeriesId id) const override { return list[id]; }
  std::size_t size() const override { return list.size(); }
};

RecordBatch step_of(std::int64_t step, std::size_t tensors, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  RecordBatch batch;
  batch.time_ns = step;
  for (std::size_t i = 0; i < tensors; ++i) {
    Row row;
    row.key.series = static_cast<SeriesId>(i);
    row.key.window = step;
    row.key.seq = static_cast<std::uint64_t>(step) * tensors + i;
    row.state.count = 65536;
    row.state.mean = normal(random);
    row.state.sum_sq = std::abs(normal(random));
    row.state.min = -1.0 - std::abs(normal(random));
    row.state.max = 1.0 + std::abs(normal(random));
    batch.rows.push_back(row);
  }
  batch.outcomes.push_back({0, step, step, 0, Fate::taken, 1.0});
  return batch;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto tensors = static_cast<std::size_t>(std::atoi(argv[2]));
  const int steps = std::atoi(argv[3]);
  Listed series;
  for (std::size_t i = 0; i < tensors; ++i) {
    Series one;
    one.kind = kind::kGradReduced;
    one.name = "layers." + std::to_string(i / 10) + ".part" + std::to_string(i % 10) + ".weight";
    series.list.push_back(one);
  }
  RunInfo run;
  run.directory = argv[1];
  std::filesystem::create_directories(run.directory);
  const auto sink = make_tensorboard_sink(8 * tensors);
  sink->open(run, series);
  std::mt19937_64 random(1);
  std::vector<double> times;
  for (int step = 0; step < steps; ++step) {
    const RecordBatch batch = step_of(step, tensors, random);
    const auto start = Clock::now();
    sink->write(batch);
    sink->flush();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  sink->close();
  std::sort(times.begin(), times.end());
  std::printf("{\"milliseconds\": %.4f, \"scalars\": %zu}\n", times[times.size() / 2], 4 * tensors);
  return 0;
}
