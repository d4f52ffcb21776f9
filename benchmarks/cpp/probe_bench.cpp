// What the probe takes of a tensor against the fastest loop that only reads the same bytes, turn by
// turn in one run.
//
// Usage: probe_bench [--mib N] [--rounds N] [--json FILE]. Shared machines vary: only the
// ratios within a run mean something.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "lines.h"
#include "read_limit.h"
#include "stats/cpu/level.h"
#include "trainmon/probe.h"

using namespace bench;

namespace {

using Requests = std::vector<std::pair<const char*, trainmon::ProbeRequest>>;

Requests requests() {
  trainmon::ProbeRequest signs;
  signs.signs = trainmon::Signs::positive;
  trainmon::ProbeRequest ternary;
  ternary.signs = trainmon::Signs::ternary;
  trainmon::ProbeRequest intervals = signs;
  intervals.intervals = true;
  intervals.bounds = {-1.0, 0.0, 1.0};
  trainmon::ProbeRequest many = signs;
  many.intervals = true;
  for (int i = 0; i < 1000; ++i) many.bounds.push_back((i - 500) * 1e-5);
  const auto digest = [](trainmon::Digest kind) {
    trainmon::ProbeRequest request;
    request.digest = kind;
    return request;
  };
  return {{"state", {}},
          {"signs", signs},
          {"ternary signs", ternary},
          {"signs, 4 intervals", intervals},
          {"signs, 1001 intervals", many},
          {"fast64", digest(trainmon::Digest::fast64)},
          {"crc32", digest(trainmon::Digest::crc32)},
          {"md5", digest(trainmon::Digest::md5)}};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mib = take_argument(argc, argv, "--mib", "256");
  const int rounds = std::atoi(take_argument(argc, argv, "--rounds", "7").c_str());
  const std::string json = take_argument(argc, argv, "--json", "");
  if (argc != 1) {
    std::fprintf(stderr, "usage: probe_bench [--mib N] [--rounds N] [--json FILE]\n");
    return 2;
  }
  const std::size_t bytes = static_cast<std::size_t>(std::atoi(mib.c_str())) << 20;
  std::vector<char> buffer(bytes);
  const std::vector<CpuLevel> levels = levels_here();
  std::vector<Line> lines;
  std::printf("%zu MiB, %d rounds, one thread\n", bytes >> 20, rounds);
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    fill(buffer.data(), bytes, dtype);
    const auto n = static_cast<std::int64_t>(bytes / trainmon::dtype_size(dtype));
    const trainmon::TensorView view{buffer.data(), dtype, 1, &n, nullptr};
    for (const auto& [what, request] : requests()) {
      ReadLimit limit;
      std::map<CpuLevel, Times> times;
      for (int round = 0; round < rounds; ++round) {
        limit.round(buffer.data(), bytes, 1);
        for (const CpuLevel level : levels) {
          trainmon::set_cpu_level(level);
          time(times[level], [&, &request = request] {
            sink += static_cast<std::uint64_t>(trainmon::probe(view, request).state.count);
          });
        }
      }
      for (const CpuLevel level : levels) {
        const double gb = static_cast<double>(bytes) / 1e9;
        const double wall = gb / median(times[level].wall);
        const double read = gb / limit.wall();
        const std::string name = std::string("probe: ") + what + ", " +
                                 std::string(trainmon::dtype_name(dtype)) + ", " +
                                 std::string(trainmon::cpu_level_name(level));
        std::printf("%-44s %6.2f GB/s of %5.1f  ratio %.2f, of CPU time %.2f\n", name.c_str(), wall,
                    read, wall / read, limit.cpu() / median(times[level].cpu));
        lines.push_back({name, wall, "GB/s", "fastest loop that only reads", read, false});
        std::fflush(stdout);
      }
    }
  }
  write_lines(json, lines);
  std::printf("check %d\n", sink != 0);
}
