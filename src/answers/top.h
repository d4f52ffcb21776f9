// Which tensors have the largest or smallest values of a statistic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "trainmon/read.h"

namespace trainmon {

// The largest (or, for `smallest`, smallest) values of a statistic, one row per series over the
// rows given; NaN first, of equal values the earliest, tensors of integers last. Rows without
// elements or without values are left out.
struct Ranked {
  ReadRow row;
  double value = 0.0;
};
std::vector<Ranked> top(const RunRows& rows, Stat stat, std::size_t count, bool smallest = false);

// top() over a run on disk, whose rows are looked at one by one and not kept. Throws as
// read_run().
struct TopOfRun {
  RunRows run;                 // without rows and payloads
  std::vector<Ranked> ranked;  // series of its rows are those of `run`
  std::int64_t rows = 0;       // that were looked at
  std::int64_t tensors = 0;    // among which these are the first
  std::int64_t partial = 0;    // rows that were merged and lack elements
};
TopOfRun top(const std::filesystem::path& run, const ReadOptions& options, Stat stat,
             std::size_t count, bool smallest = false);

}  // namespace trainmon
