// The statistics against the fastest loop that only reads the same bytes, turn by turn in one run.
//
// Usage: stats_bench [MiB of the buffer] [rounds]. Prints one JSON object. Shared machines vary:
// only the ratios within a run mean something.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "read_limit.h"
#include "trainmon/stat.h"

using namespace bench;

int main(int argc, char** argv) {
  const std::size_t bytes = static_cast<std::size_t>(argc > 1 ? std::atoi(argv[1]) : 768) << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  std::vector<char> buffer(bytes);
  const std::vector<CpuLevel> levels = levels_here();
  std::printf("{\"bytes\": %zu, \"rounds\": %d, \"results\": [", bytes, rounds);
  const char* comma = "";
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    fill(buffer.data(), bytes, dtype);
    const auto n = static_cast<std::int64_t>(bytes / trainmon::dtype_size(dtype));
    const trainmon::TensorView view{buffer.data(), dtype, 1, &n, nullptr};
    for (const int threads : {1, 2}) {
      ReadLimit limit;
      std::map<CpuLevel, Times> stats;
      for (int round = 0; round < rounds; ++round) {
        limit.round(buffer.data(), bytes, threads);
        for (const CpuLevel level : levels) {
          trainmon::set_cpu_level(level);
          time(stats[level], [&] {
            sink += std::bit_cast<std::uint64_t>(
                trainmon::measure(view, trainmon::kDefaultEps, threads).sum);
          });
        }
      }
      for (const CpuLevel level : levels) {
        const double wall = median(stats[level].wall);
        std::printf(
            "%s\n  {\"dtype\": \"%s\", \"threads\": %d, \"level\": \"%s\", "
            "\"read_gb_per_s\": %.1f, \"stats_gb_per_s\": %.1f, \"ratio\": %.2f, "
            "\"cpu_time_ratio\": %.2f}",
            comma, std::string(trainmon::dtype_name(dtype)).c_str(), threads,
            std::string(trainmon::cpu_level_name(level)).c_str(),
            static_cast<double>(bytes) / limit.wall() / 1e9,
            static_cast<double>(bytes) / wall / 1e9, limit.wall() / wall,
            limit.cpu() / median(stats[level].cpu));
        comma = ",";
      }
    }
  }
  std::printf("\n], \"check\": %d}\n", sink != 0);
}
