// The statistics against the fastest loop that only reads the same bytes, turn by turn in one run.
//
// Usage: stats_bench [MiB of the buffer] [rounds]. Prints one JSON object. Shared machines vary:
// only the ratios within a run mean something.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "trainmon/stat.h"

namespace {

using trainmon::CpuLevel;
using trainmon::DType;

using ReadLoop = std::uint64_t (*)(const char*, std::size_t);

#if defined(__x86_64__)
template <bool prefetch>
__attribute__((target("avx2"))) std::uint64_t read_avx2(const char* data, std::size_t n) {
  __m256i sums[8] = {};
  for (std::size_t i = 0; i + 256 <= n; i += 256) {
    for (int k = 0; prefetch && k < 4; ++k) _mm_prefetch(data + i + 1024 + 64 * k, _MM_HINT_T0);
    for (int k = 0; k < 8; ++k) {
      const auto* line = reinterpret_cast<const __m256i*>(data + i + 32 * k);
      sums[k] = _mm256_xor_si256(sums[k], _mm256_loadu_si256(line));
    }
  }
  for (int k = 1; k < 8; ++k) sums[0] = _mm256_xor_si256(sums[0], sums[k]);
  return static_cast<std::uint64_t>(_mm256_extract_epi64(sums[0], 0));
}
template <bool prefetch>
__attribute__((target("avx512f"))) std::uint64_t read_avx512(const char* data, std::size_t n) {
  __m512i sums[4] = {};
  for (std::size_t i = 0; i + 256 <= n; i += 256) {
    for (int k = 0; prefetch && k < 4; ++k) _mm_prefetch(data + i + 1024 + 64 * k, _MM_HINT_T0);
    for (int k = 0; k < 4; ++k) {
      sums[k] = _mm512_xor_si512(sums[k], _mm512_loadu_si512(data + i + 64 * k));
    }
  }
  for (int k = 1; k < 4; ++k) sums[0] = _mm512_xor_si512(sums[0], sums[k]);
  alignas(64) std::uint64_t lanes[8];
  _mm512_store_si512(lanes, sums[0]);
  return lanes[0];
}
#endif

std::uint64_t read_plain(const char* data, std::size_t n) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i + 64 <= n; i += 64) {
    for (std::size_t k = 0; k < 8; ++k) {
      std::uint64_t word;
      __builtin_memcpy(&word, data + i + 8 * k, 8);
      sums[k] ^= word;
    }
  }
  for (std::size_t k = 1; k < 8; ++k) sums[0] ^= sums[k];
  return sums[0];
}

std::map<std::string, ReadLoop> read_loops() {
  std::map<std::string, ReadLoop> loops = {{"plain", read_plain}};
#if defined(__x86_64__)
  if (trainmon::detected_cpu_level() >= CpuLevel::avx2) {
    loops["avx2"] = read_avx2<false>;
    loops["avx2 prefetch"] = read_avx2<true>;
  }
  if (trainmon::detected_cpu_level() >= CpuLevel::avx512) {
    loops["avx512"] = read_avx512<false>;
    loops["avx512 prefetch"] = read_avx512<true>;
  }
#endif
  return loops;
}

std::uint64_t sink = 0;  // keeps the loops alive

void read_threads(ReadLoop loop, const char* data, std::size_t n, int threads) {
  std::vector<std::uint64_t> results(static_cast<std::size_t>(threads));
  std::vector<std::jthread> others;
  const std::size_t share = n / static_cast<std::size_t>(threads);
  for (std::size_t i = 1; i < results.size(); ++i) {
    others.emplace_back([&, i] { results[i] = loop(data + i * share, share); });
  }
  results[0] = loop(data, share);
  others.clear();
  for (const std::uint64_t result : results) sink += result;
}

struct Times {
  std::vector<double> wall;
  std::vector<double> cpu;  // of all threads: what other programs' turns on the core do not reach
};

void time(Times& times, const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu_start = std::clock();
  work();
  times.cpu.push_back(static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC);
  times.wall.push_back(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

// Numbers of a gradient's size; bits of the type asked for.
void fill(char* data, std::size_t bytes, DType dtype) {
  std::uint32_t state = 1;
  const std::size_t size = trainmon::dtype_size(dtype);
  for (std::size_t i = 0; i < bytes; i += size) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(static_cast<std::int32_t>(state)) * 1e-12f;
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) >> (size == 2 ? 16 : 0);
    __builtin_memcpy(data + i, &bits, size);
  }
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t bytes = static_cast<std::size_t>(argc > 1 ? std::atoi(argv[1]) : 768) << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  std::vector<char> buffer(bytes);
  std::vector<CpuLevel> levels;
  for (const CpuLevel level : {CpuLevel::baseline, CpuLevel::avx2, CpuLevel::avx512}) {
    if (level <= trainmon::detected_cpu_level()) levels.push_back(level);
  }
  std::printf("{\"bytes\": %zu, \"rounds\": %d, \"results\": [", bytes, rounds);
  const char* comma = "";
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    fill(buffer.data(), bytes, dtype);
    const auto n = static_cast<std::int64_t>(bytes / trainmon::dtype_size(dtype));
    const trainmon::TensorView view{buffer.data(), dtype, 1, &n, nullptr};
    for (const int threads : {1, 2}) {
      std::map<std::string, Times> reads;
      std::map<CpuLevel, Times> stats;
      for (int round = 0; round < rounds; ++round) {
        for (const auto& [name, loop] : read_loops()) {
          time(reads[name],
               [&, loop = loop] { read_threads(loop, buffer.data(), bytes, threads); });
        }
        for (const CpuLevel level : levels) {
          trainmon::set_cpu_level(level);
          time(stats[level], [&] {
            sink += std::bit_cast<std::uint64_t>(
                trainmon::measure(view, trainmon::kDefaultEps, threads).sum);
          });
        }
      }
      double read_wall = 1e9, read_cpu = 1e9;
      for (const auto& [name, times] : reads) {
        read_wall = std::min(read_wall, median(times.wall));
        read_cpu = std::min(read_cpu, median(times.cpu));
      }
      for (const CpuLevel level : levels) {
        const double wall = median(stats[level].wall);
        std::printf(
            "%s\n  {\"dtype\": \"%s\", \"threads\": %d, \"level\": \"%s\", "
            "\"read_gb_per_s\": %.1f, \"stats_gb_per_s\": %.1f, \"ratio\": %.2f, "
            "\"cpu_time_ratio\": %.2f}",
            comma, std::string(trainmon::dtype_name(dtype)).c_str(), threads,
            std::string(trainmon::cpu_level_name(level)).c_str(),
            static_cast<double>(bytes) / read_wall / 1e9, static_cast<double>(bytes) / wall / 1e9,
            read_wall / wall, read_cpu / median(stats[level].cpu));
        comma = ",";
      }
    }
  }
  std::printf("\n], \"check\": %d}\n", sink != 0);
}
