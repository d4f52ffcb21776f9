// How far norm and mean are from sums in long double (64 bits of significand, pairwise), and
// whether the bits are the same for 1 to 8 threads and for every level of this machine.
//
// Usage: accuracy_bench [elements] (10^8). The error of the norm is relative to it, that of the
// mean relative to the mean of |x|. Exit code 1 when the bits differ.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "lines.h"
#include "read_limit.h"
#include "stats/cpu/level.h"
#include "trainmon/stat.h"

using namespace bench;
using trainmon::RowState;

namespace {

struct Sums {
  long double x = 0, magnitude = 0, square = 0;
};

template <class Value>
Sums pairwise(std::int64_t begin, std::int64_t n, const Value& value) {
  Sums sums;
  if (n <= 64) {
    for (std::int64_t i = begin; i < begin + n; ++i) {
      const long double x = value(i);
      sums.x += x;
      sums.magnitude += std::fabs(x);
      sums.square += x * x;
    }
    return sums;
  }
  const Sums a = pairwise(begin, n / 2, value);
  const Sums b = pairwise(begin + n / 2, n - n / 2, value);
  return {a.x + b.x, a.magnitude + b.magnitude, a.square + b.square};
}

bool same(const RowState& a, const RowState& b) {
  const auto bits = [](double x) { return std::bit_cast<std::uint64_t>(x); };
  return bits(a.sum) == bits(b.sum) && bits(a.sum_sq) == bits(b.sum_sq) &&
         bits(a.m2) == bits(b.m2) && bits(a.min) == bits(b.min) && bits(a.max) == bits(b.max) &&
         a.zeros == b.zeros && a.subnormals == b.subnormals;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t n = std::atoll(take_argument(argc, argv, "--elements", "100000000").c_str());
  const std::string json = take_argument(argc, argv, "--json", "");
  if (argc != 1 || n < 1) {
    std::fprintf(stderr, "usage: accuracy_bench [--elements N] [--json FILE]\n");
    return 2;
  }
  const auto size = static_cast<std::size_t>(n);
  std::mt19937_64 random(1);
  std::vector<float> normal(size);
  std::normal_distribution<float> gauss;
  for (float& x : normal) x = gauss(random);

  struct Case {
    const char* name;
    float (*of)(float normal);
  };
  constexpr Case kCases[] = {
      {"N(0, 1e-22)", [](float x) { return x * 1e-22f; }},
      {"N(0, 1e-3)", [](float x) { return x * 1e-3f; }},
      {"N(1, 1e-3)", [](float x) { return 1.0f + x * 1e-3f; }},
      {"|N(0, 1)|", [](float x) { return std::fabs(x); }},
      {"exp(4 N(0, 1))", [](float x) { return std::exp(4 * x); }},
      {"N(0, 1e20)", [](float x) { return x * 1e18f * 100.0f; }},
  };
  bool equal = true;
  std::vector<Line> lines;
  std::printf("%-10s %-20s %10s %10s %s\n", "type", "elements", "norm", "mean",
              "threads and levels");
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const Case& line : kCases) {
      std::vector<float> wide;
      std::vector<std::uint16_t> narrow;
      if (dtype == DType::float32) {
        for (const float x : normal) wide.push_back(line.of(x));
      } else {
        for (const float x : normal) {
          narrow.push_back(
              static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(line.of(x)) >> 16));
        }
      }
      const void* data = dtype == DType::float32 ? static_cast<const void*>(wide.data())
                                                 : static_cast<const void*>(narrow.data());
      const Sums want = pairwise(0, n, [&](std::int64_t i) {
        const auto at = static_cast<std::size_t>(i);
        return static_cast<long double>(
            dtype == DType::float32
                ? wide[at]
                : std::bit_cast<float>(static_cast<std::uint32_t>(narrow[at]) << 16));
      });
      const trainmon::TensorView view{data, dtype, 1, &n, nullptr};
      const RowState got = trainmon::measure(view);
      bool all_same = true;
      for (const CpuLevel level : levels_here()) {
        trainmon::set_cpu_level(level);
        for (int threads = 1; threads <= 8; ++threads) {
          all_same &= same(trainmon::measure(view, trainmon::kDefaultEps, threads), got);
        }
      }
      equal &= all_same;
      const long double norm = std::sqrt(want.square);
      const auto count = static_cast<long double>(n);
      const auto norm_error =
          static_cast<double>(std::fabs(trainmon::derive(trainmon::Stat::norm, got) - norm) / norm);
      const auto mean_error =
          static_cast<double>(std::fabs(got.mean - want.x / count) / (want.magnitude / count));
      const std::string type(trainmon::dtype_name(dtype));
      std::printf("%-10s %-20s %10.1e %10.1e %s\n", type.c_str(), line.name, norm_error, mean_error,
                  all_same ? "bit-equal" : "DIFFERENT");
      std::fflush(stdout);
      const std::string what = " of " + type + ", " + line.name;
      lines.push_back({"norm" + what, norm_error, "", "at most", 2e-8, true});
      if (dtype == DType::float32) {
        lines.push_back({"mean" + what, mean_error, "", "at most", 1e-15, true});
      }
    }
  }
  write_lines(json, lines);
  return equal ? 0 : 1;
}
