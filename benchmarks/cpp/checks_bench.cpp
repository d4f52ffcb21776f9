// The state with fingerprint and sketch against the state alone, and against the fastest loop that
// only reads the same bytes, turn by turn in one run.
//
// Usage: checks_bench [--mib N] [--rounds N] [--json FILE]
// Lines: every float type in a buffer of N MiB (256) and in the second-level cache (512 KiB), one
// thread. "anywhere": the first element has an index that is no multiple of 256, so fingerprint and
// sketch are a second look at each block. At last the step of Adam. Shared machines vary: only the
// ratios within a run mean something. Ratios are of CPU time, which other programs' turns on the
// core do not reach.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "lines.h"
#include "read_limit.h"
#include "stats/check.h"
#include "stats/cpu/level.h"
#include "stats/update.h"

using namespace bench;

namespace {

// One way to measure a tensor, and its times.
struct Way {
  const char* name;
  std::int64_t first;  // -1: the state alone
  Times times;

  void run(const trainmon::TensorView& view, std::size_t repeats) {
    time(times, [&] {
      for (std::size_t i = 0; i < repeats; ++i) {
        if (first < 0) {
          sink += static_cast<std::uint64_t>(trainmon::measure(view).count);
        } else {
          trainmon::Check check;
          trainmon::measure(view, first, check);
          sink += check.fingerprint;
        }
      }
    });
  }
};

void measure_case(char* buffer, std::size_t bytes, DType dtype, int rounds,
                  std::vector<Line>& lines) {
  fill(buffer, bytes, dtype);
  const auto n = static_cast<std::int64_t>(bytes / trainmon::dtype_size(dtype));
  const trainmon::TensorView view{buffer, dtype, 1, &n, nullptr};
  const std::size_t repeats = std::max<std::size_t>(1, (std::size_t{64} << 20) / bytes);
  ReadLimit limit;
  std::map<CpuLevel, std::vector<Way>> ways;
  for (int round = 0; round < rounds; ++round) {
    limit.round(buffer, bytes, 1, repeats);
    for (const CpuLevel level : levels_here()) {
      trainmon::set_cpu_level(level);
      auto& of_level = ways[level];
      if (round == 0) of_level = {{"state", -1, {}}, {"checks", 0, {}}, {"checks anywhere", 1, {}}};
      for (Way& way : of_level) way.run(view, repeats);
    }
  }
  const double gb = static_cast<double>(bytes * repeats) / 1e9;
  const std::string size = bytes < (1 << 20) ? std::to_string(bytes >> 10) + " KiB"
                                             : std::to_string(bytes >> 20) + " MiB";
  for (auto& [level, of_level] : ways) {
    const double state = gb / median(of_level[0].times.cpu);
    const std::string at = ", " + std::string(trainmon::dtype_name(dtype)) + ", " + size + ", " +
                           std::string(trainmon::cpu_level_name(level));
    const auto show = [&](const std::string& name, double figure, const char* yardstick,
                          double yardstick_figure) {
      std::printf("%-52s %6.2f of %6.2f GB/s (%s)  ratio %.3f\n", name.c_str(), figure,
                  yardstick_figure, yardstick, figure / yardstick_figure);
      lines.push_back({name, figure, "GB/s", yardstick, yardstick_figure, false});
    };
    for (std::size_t i = 1; i < of_level.size(); ++i) {
      const double figure = gb / median(of_level[i].times.cpu);
      show(of_level[i].name + at, figure, "state alone", state);
      show(of_level[i].name + at + ", of reading", figure, "fastest loop that only reads",
           gb / limit.cpu());
    }
  }
  std::fflush(stdout);
}

// The step of Adam from two moments in float32, beside the states of both.
void measure_update(char* buffer, std::size_t bytes, int rounds, std::vector<Line>& lines) {
  fill(buffer, bytes, DType::float32);
  for (std::size_t i = bytes / 2 + 3; i < bytes; i += 4) buffer[i] &= 0x7f;  // v is not negative
  const auto n = static_cast<std::int64_t>(bytes / 8);
  const trainmon::TensorView m{buffer, DType::float32, 1, &n, nullptr};
  const trainmon::TensorView v{buffer + bytes / 2, DType::float32, 1, &n, nullptr};
  const auto formula = trainmon::adam_update(m, v, 10, 0.9, 0.999, 1e-8);
  std::map<CpuLevel, std::pair<Times, Times>> times;
  for (int round = 0; round < rounds; ++round) {
    for (const CpuLevel level : levels_here()) {
      trainmon::set_cpu_level(level);
      time(times[level].first, [&] {
        for (const auto& tensor : {m, v}) {
          sink += static_cast<std::uint64_t>(trainmon::measure(tensor).count);
        }
      });
      time(times[level].second, [&] {
        trainmon::Check check;
        trainmon::measure(formula, 0, check);
        sink += check.fingerprint;
      });
    }
  }
  const double elements = static_cast<double>(n) / 1e9;
  for (const auto& [level, both] : times) {
    const double state = elements / median(both.first.cpu);
    const double update = elements / median(both.second.cpu);
    const std::string name = "update of Adam, float32, " + std::to_string(bytes >> 20) + " MiB, " +
                             std::string(trainmon::cpu_level_name(level));
    std::printf("%-52s %6.2f of %6.2f elements/ns (states of both moments)  ratio %.3f\n",
                name.c_str(), update, state, update / state);
    lines.push_back({name, update, "elements/ns", "states of both moments", state, false});
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mib = take_argument(argc, argv, "--mib", "256");
  const int rounds = std::atoi(take_argument(argc, argv, "--rounds", "9").c_str());
  const std::string json = take_argument(argc, argv, "--json", "");
  if (argc != 1) {
    std::fprintf(stderr, "usage: checks_bench [--mib N] [--rounds N] [--json FILE]\n");
    return 2;
  }
  const std::size_t large = static_cast<std::size_t>(std::atoi(mib.c_str())) << 20;
  std::vector<char> buffer(std::max<std::size_t>(large, 512 << 10));
  std::vector<Line> lines;
  std::printf("%zu MiB, %d rounds, one thread\n", large >> 20, rounds);
  for (const std::size_t bytes : {large, std::size_t{512} << 10}) {
    for (const DType dtype :
         {DType::float32, DType::bfloat16, DType::float16, DType::float64, DType::float8_e4m3fn}) {
      measure_case(buffer.data(), bytes, dtype, rounds, lines);
    }
  }
  measure_update(buffer.data(), large, rounds, lines);
  write_lines(json, lines);
  std::printf("check %d\n", sink != 0);
}
