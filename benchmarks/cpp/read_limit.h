// The yardstick of the benchmarks: the fastest loop that only reads the same bytes; numbers to
// read.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "stats/cpu/level.h"
#include "trainmon/stat.h"

namespace bench {

using trainmon::CpuLevel;
using trainmon::DType;

// The levels of the CPU kernels that this machine has.
inline std::vector<CpuLevel> levels_here() {
  std::vector<CpuLevel> levels;
  for (const CpuLevel level : {CpuLevel::baseline, CpuLevel::avx2, CpuLevel::avx512}) {
    if (level <= trainmon::detected_cpu_level()) levels.push_back(level);
  }
  return levels;
}

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

inline std::uint64_t read_plain(const char* data, std::size_t n) {
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

inline std::map<std::string, ReadLoop> read_loops() {
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

inline std::uint64_t sink = 0;  // keeps the loops alive

inline void read_threads(ReadLoop loop, const char* data, std::size_t n, int threads) {
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

inline void time(Times& times, const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu_start = std::clock();
  work();
  times.cpu.push_back(static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC);
  times.wall.push_back(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

// Numbers of a gradient's size; bits of the type asked for (of the narrow types any finite ones).
inline void fill(char* data, std::size_t bytes, DType dtype) {
  std::uint32_t state = 1;
  const std::size_t size = trainmon::dtype_size(dtype);
  for (std::size_t i = 0; i < bytes; i += size) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(static_cast<std::int32_t>(state)) * 1e-12f;
    const double wide = static_cast<double>(value);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t narrow = dtype == DType::bfloat16 ? bits >> 16
                                 : size == 2              ? state >> 16 & 0xbfff
                                                          : state >> 24 & 0xbf;
    if (size == 8) {
      __builtin_memcpy(data + i, &wide, size);
    } else {
      __builtin_memcpy(data + i, size == 4 ? &bits : &narrow, size);
    }
  }
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// The shortest medians of the loops, in seconds.
struct ReadLimit {
  std::map<std::string, Times> loops;

  void round(const char* data, std::size_t n, int threads, std::size_t repeats = 1) {
    for (const auto& [name, loop] : read_loops()) {
      time(loops[name], [&, loop = loop] {
        for (std::size_t i = 0; i < repeats; ++i) read_threads(loop, data, n, threads);
      });
    }
  }
  double wall() const { return shortest(&Times::wall); }
  double cpu() const { return shortest(&Times::cpu); }

 private:
  double shortest(std::vector<double> Times::*which) const {
    double least = 1e9;
    for (const auto& [name, times] : loops) least = std::min(least, median(times.*which));
    return least;
  }
};

}  // namespace bench
