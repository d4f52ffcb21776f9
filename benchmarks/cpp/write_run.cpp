// Writes a run of many small tensors through the monitor, for benchmarks of readers:
//   write_run OUT TENSORS STEPS [RANKS]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "trainmon/monitor.h"

namespace {

void write_rank(const std::string& out, int tensors, int steps, int rank, int ranks) {
  using namespace trainmon;
  Config config;
  config.out = out;
  config.overflow = Overflow::block;
  config.every = 1;
  config.allow_volume = true;
  config.stop_timeout_seconds = 3600;
  Identity identity;
  identity.rank = rank;
  identity.world_size = ranks;
  identity.run_id = "write_run";
  Monitor monitor(config, identity);
  const int optimizer = monitor.add_optimizer(0);
  std::vector<SeriesId> series;
  for (int i = 0; i < tensors; ++i) {
    Series one;
    one.kind = kind::kGradReduced;
    one.name = "layers." + std::to_string(i / 10) + ".part" + std::to_string(i % 10) + ".weight";
    one.full_shape = {64};
    series.push_back(monitor.add_series(one));
  }
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::normal_distribution<float> normal;
  std::vector<float> noise(1 << 16);
  for (float& x : noise) x = normal(random);
  std::vector<float> values(64);
  const std::int64_t size = static_cast<std::int64_t>(values.size());
  TensorView view;
  view.data = values.data();
  view.ndim = 1;
  view.sizes = &size;
  for (int step = 0; step < steps; ++step) {
    monitor.begin_attempt(optimizer);
    for (int i = 0; i < tensors; ++i) {
      const float scale = std::exp(-static_cast<float>(i % 17)) / (1.0f + static_cast<float>(step));
      const std::size_t from = random() % (noise.size() - values.size());
      for (std::size_t k = 0; k < values.size(); ++k) values[k] = noise[from + k] * scale;
      monitor.observe(series[static_cast<std::size_t>(i)], view);
    }
    monitor.end_attempt(optimizer, Fate::taken, 1.0);
    monitor.seal(Moment::after_step);
  }
  const Health health = monitor.stop();
  for (const SinkHealth& sink : health.sinks) {
    std::printf("rank %d: %s wrote %lld rows\n", rank, sink.name.c_str(),
                static_cast<long long>(sink.rows_written));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: write_run OUT TENSORS STEPS [RANKS]\n");
    return 2;
  }
  const int ranks = argc > 4 ? std::atoi(argv[4]) : 1;
  for (int rank = 0; rank < ranks; ++rank) {
    write_rank(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), rank, ranks);
  }
  return 0;
}
