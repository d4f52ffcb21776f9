// The statistics against the fastest loop that only reads the same bytes, turn by turn in one run.
//
// Usage: stats_bench [--mib N] [--rounds N] [--json FILE]
// Lines: every float type in a buffer of N MiB (768) and in the second-level cache (512 KiB), one
// thread; float32 and bfloat16 on two threads as well; contents and layouts that take longer than
// ordinary ones. A line has the yardstick of its own turns. Shared machines vary: only the ratios
// within a run mean something.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lines.h"
#include "read_limit.h"
#include "stats/cpu/level.h"
#include "trainmon/stat.h"

using namespace bench;

namespace {

// What the elements are. `gradient`: of a gradient's size. `relu`: every second one is 0. `rare`:
// one in a thousand is 0. `small`: one in a thousand is below the threshold of the statistic zeros,
// as in nearly every gradient of an activation. `halves`: rows of 4 KiB, every
// second half of which is left out, as a chunk of a tensor has them. `stepped`: every second
// element.
struct Case {
  DType dtype;
  const char* contents;
  std::size_t bytes;  // of the buffer
  int threads;
};

void fill_case(char* data, const Case& line) {
  fill(data, line.bytes, line.dtype);
  const std::size_t size = trainmon::dtype_size(line.dtype);
  const bool is_small = std::strcmp(line.contents, "small") == 0;
  const std::size_t every = std::strcmp(line.contents, "relu") == 0               ? 2
                            : std::strcmp(line.contents, "rare") == 0 || is_small ? 1000
                                                                                  : 0;
  if (every == 0) return;
  const float value = is_small ? 1e-9f : 0.0f;  // bfloat16 has the upper half of its bytes
  const char* bytes = reinterpret_cast<const char*>(&value) + sizeof value - size;
  for (std::size_t i = 0; i < line.bytes; i += every * size) std::memcpy(data + i, bytes, size);
}

struct Results {
  double read_gb_per_s = 0;
  double stats_gb_per_s = 0;
  double ratio = 0;
  double cpu_ratio = 0;
};

std::map<CpuLevel, Results> measure_case(char* buffer, const Case& line, int rounds) {
  fill_case(buffer, line);
  const auto item = static_cast<std::int64_t>(trainmon::dtype_size(line.dtype));
  const auto n = static_cast<std::int64_t>(line.bytes) / item;
  std::int64_t sizes[] = {n, 1};
  std::int64_t strides[] = {1, 1};
  std::size_t read = line.bytes;
  if (std::strcmp(line.contents, "halves") == 0) {
    const std::int64_t row = 4096 / item;
    sizes[0] = n / row;
    sizes[1] = row / 2;
    strides[0] = row;
    read /= 2;
  } else if (std::strcmp(line.contents, "stepped") == 0) {
    sizes[0] = n / 2;
    strides[0] = 2;
  }
  const trainmon::TensorView view{buffer, line.dtype, 2, sizes, strides};
  // Long enough for the clocks.
  const std::size_t repeats = std::max<std::size_t>(1, (std::size_t{64} << 20) / line.bytes);
  ReadLimit limit;
  std::map<CpuLevel, Times> stats;
  for (int round = 0; round < rounds; ++round) {
    limit.round(buffer, read, line.threads, repeats);
    for (const CpuLevel level : levels_here()) {
      trainmon::set_cpu_level(level);
      time(stats[level], [&] {
        for (std::size_t i = 0; i < repeats; ++i) {
          sink += std::bit_cast<std::uint64_t>(
              trainmon::measure(view, trainmon::kDefaultEps, line.threads).sum);
        }
      });
    }
  }
  std::map<CpuLevel, Results> out;
  const double gb = static_cast<double>(read * repeats) / 1e9;
  for (const auto& [level, times] : stats) {
    const double wall = median(times.wall);
    out[level] = {gb / limit.wall(), gb / wall, limit.wall() / wall,
                  limit.cpu() / median(times.cpu)};
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mib = take_argument(argc, argv, "--mib", "768");
  const int rounds = std::atoi(take_argument(argc, argv, "--rounds", "7").c_str());
  const std::string json = take_argument(argc, argv, "--json", "");
  if (argc != 1) {
    std::fprintf(stderr, "usage: stats_bench [--mib N] [--rounds N] [--json FILE]\n");
    return 2;
  }
  constexpr DType kTypes[] = {DType::float32, DType::bfloat16,      DType::float16,
                              DType::float64, DType::float8_e4m3fn, DType::float8_e5m2};
  const std::size_t large = static_cast<std::size_t>(std::atoi(mib.c_str())) << 20;
  const std::size_t cached = 512 << 10;
  std::vector<Case> cases;
  for (const std::size_t bytes : {large, cached}) {
    for (const DType dtype : kTypes) cases.push_back({dtype, "gradient", bytes, 1});
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      if (bytes == large) cases.push_back({dtype, "gradient", bytes, 2});
      for (const char* contents : {"relu", "rare", "small", "halves", "stepped"}) {
        cases.push_back({dtype, contents, bytes, 1});
      }
    }
  }
  std::vector<char> buffer(large);
  std::vector<Line> lines;
  for (const Case& line : cases) {
    for (const auto& [level, got] : measure_case(buffer.data(), line, rounds)) {
      const std::string size = line.bytes == large ? mib + " MiB" : "512 KiB";
      const std::string name = "statistics: " + std::string(trainmon::dtype_name(line.dtype)) +
                               ", " + line.contents + ", " + size + ", " +
                               std::to_string(line.threads) +
                               (line.threads == 1 ? " thread, " : " threads, ") +
                               std::string(trainmon::cpu_level_name(level));
      std::printf("%-66s %6.2f GB/s of %5.1f  ratio %.2f, of CPU time %.2f\n", name.c_str(),
                  got.stats_gb_per_s, got.read_gb_per_s, got.ratio, got.cpu_ratio);
      std::fflush(stdout);
      lines.push_back({name, got.stats_gb_per_s, "GB/s", "fastest loop that only reads",
                       got.read_gb_per_s, false});
    }
  }
  std::printf("check %d\n", sink != 0);
  write_lines(json, lines);
}
