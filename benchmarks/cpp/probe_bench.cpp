// What the probe takes of a tensor against the fastest loop that only reads the same bytes, turn by
// turn in one run.
//
// Usage: probe_bench [MiB of the buffer] [rounds]. Prints one JSON object. Shared machines vary:
// only the ratios within a run mean something.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "read_limit.h"
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
  const std::size_t bytes = static_cast<std::size_t>(argc > 1 ? std::atoi(argv[1]) : 256) << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  std::vector<char> buffer(bytes);
  const std::vector<CpuLevel> levels = levels_here();
  std::printf("{\"bytes\": %zu, \"rounds\": %d, \"results\": [", bytes, rounds);
  const char* comma = "";
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
        const double wall = median(times[level].wall);
        std::printf(
            "%s\n  {\"dtype\": \"%s\", \"what\": \"%s\", \"level\": \"%s\", "
            "\"read_gb_per_s\": %.1f, \"probe_gb_per_s\": %.2f, \"ratio\": %.2f, "
            "\"cpu_time_ratio\": %.2f}",
            comma, std::string(trainmon::dtype_name(dtype)).c_str(), what,
            std::string(trainmon::cpu_level_name(level)).c_str(),
            static_cast<double>(bytes) / limit.wall() / 1e9,
            static_cast<double>(bytes) / wall / 1e9, limit.wall() / wall,
            limit.cpu() / median(times[level].cpu));
        comma = ",";
        std::fflush(stdout);
      }
    }
  }
  std::printf("\n], \"check\": %d}\n", sink != 0);
}
