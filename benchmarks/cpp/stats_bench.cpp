// The statistics against the fastest loop that only reads the same bytes, turn by turn in one run.
//
// Usage: stats_bench [--mib N] [--rounds N] [--json FILE]. Shared machines vary: only the ratios
// within a run mean something.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "lines.h"
#include "read_limit.h"
#include "trainmon/stat.h"

using namespace bench;

int main(int argc, char** argv) {
  const std::string mib = take_argument(argc, argv, "--mib", "768");
  const int rounds = std::atoi(take_argument(argc, argv, "--rounds", "7").c_str());
  const std::string json = take_argument(argc, argv, "--json", "");
  if (argc != 1) {
    std::fprintf(stderr, "usage: stats_bench [--mib N] [--rounds N] [--json FILE]\n");
    return 2;
  }
  const std::size_t bytes = static_cast<std::size_t>(std::atoi(mib.c_str())) << 20;
  std::vector<char> buffer(bytes);
  const std::vector<CpuLevel> levels = levels_here();
  std::vector<Line> lines;
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
        const double gb = static_cast<double>(bytes) / 1e9;
        const double here = gb / median(stats[level].wall);
        const double read = gb / limit.wall();
        const std::string name = "statistics: " + std::string(trainmon::dtype_name(dtype)) +
                                 ", gradient, " + mib + " MiB, " + std::to_string(threads) +
                                 (threads == 1 ? " thread, " : " threads, ") +
                                 std::string(trainmon::cpu_level_name(level));
        std::printf("%-60s %6.2f GB/s of %5.1f  ratio %.2f, of CPU time %.2f\n", name.c_str(), here,
                    read, here / read, limit.cpu() / median(stats[level].cpu));
        std::fflush(stdout);
        lines.push_back({name, here, "GB/s", "fastest loop that only reads", read, false});
      }
    }
  }
  std::printf("check %d\n", sink != 0);
  write_lines(json, lines);
}
