// An oracle for the statistics that shares nothing with them: long double, element by element.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "stats/cpu/level.h"
#include "trainmon/stat.h"

namespace trainmon::test {

struct Oracle {
  std::int64_t count = 0, nans = 0, pos_infs = 0, neg_infs = 0, zeros = 0, subnormals = 0;
  long double sum = 0, sum_sq = 0, m2 = 0, mean = 0, sum_abs = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
};

// Elements as float64 (exact for every float type); `smallest_normal` of the type, 0 for integers.
inline Oracle oracle(const std::vector<double>& values, double eps, double smallest_normal) {
  Oracle o;
  for (const double x : values) {
    ++o.count;
    if (std::isnan(x)) {
      ++o.nans;
      continue;
    }
    if (std::isinf(x)) {
      ++(x > 0 ? o.pos_infs : o.neg_infs);
      continue;
    }
    o.zeros += std::fabs(x) < eps;
    o.subnormals += x != 0 && std::fabs(x) < smallest_normal;
    o.sum += x;
    o.sum_abs += std::fabs(x);
    o.sum_sq += static_cast<long double>(x) * x;
    o.min = std::min(o.min, x);
    o.max = std::max(o.max, x);
  }
  const auto n = o.count - o.nans - o.pos_infs - o.neg_infs;
  if (n > 0) o.mean = o.sum / static_cast<long double>(n);
  for (const double x : values) {
    if (std::isfinite(x)) o.m2 += (x - o.mean) * (x - o.mean);
  }
  return o;
}

// Bit by bit, so that NaN equals NaN and 0.0 differs from -0.0.
inline bool same(const RowState& a, const RowState& b) {
  const auto bits = [](double x) { return std::bit_cast<std::uint64_t>(x); };
  return a.count == b.count && a.nans == b.nans && a.pos_infs == b.pos_infs &&
         a.neg_infs == b.neg_infs && a.zeros == b.zeros && a.subnormals == b.subnormals &&
         bits(a.sum) == bits(b.sum) && bits(a.mean) == bits(b.mean) && bits(a.m2) == bits(b.m2) &&
         bits(a.sum_sq) == bits(b.sum_sq) && bits(a.min) == bits(b.min) &&
         bits(a.max) == bits(b.max) && bits(a.absmax) == bits(b.absmax) && a.exponent == b.exponent;
}

inline std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> all = {CpuLevel::baseline};
  if (detected_cpu_level() >= CpuLevel::avx2) all.push_back(CpuLevel::avx2);
  if (detected_cpu_level() >= CpuLevel::avx512) all.push_back(CpuLevel::avx512);
  return all;
}

}  // namespace trainmon::test
