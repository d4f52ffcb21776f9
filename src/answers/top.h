// Which tensors left their own history furthest, or have the largest or smallest values of a
// statistic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <vector>

#include "trainmon/read.h"

namespace trainmon {

// The largest (or, for `smallest`, smallest) values of a statistic, one row per series over the
// rows given. NaN is first, of equal values the earliest, tensors of integers last. Rows without
// elements or without values are left out.
struct Ranked {
  ReadRow row;
  double value = 0.0;
  // By history alone; else NaN. A score is infinite where the row is not finite.
  double score = std::numeric_limits<double>::quiet_NaN();
  double usual = std::numeric_limits<double>::quiet_NaN();  // the median of what was before
};
std::vector<Ranked> top(const RunRows& rows, Stat stat, std::size_t count, bool smallest = false);

// top() over a run on disk, whose rows are looked at one by one and not kept. Throws as
// read_run().
struct TopOfRun {
  RunRows run;                 // without rows and payloads
  std::vector<Ranked> ranked;  // series of its rows are those of `run`
  std::int64_t rows = 0;       // that were looked at
  std::int64_t tensors = 0;    // among which these are the first
  std::int64_t unranked = 0;   // that have rows and no history; 0 by size
  std::int64_t partial = 0;    // rows that were merged and lack elements
};
TopOfRun top(const std::filesystem::path& run, const ReadOptions& options, Stat stat,
             std::size_t count, bool smallest = false);

// The tensors that left their own history furthest, each once, at the row where it did, on the rank
// where it did (src/answers/history.h). What is not finite leads, in the order of first-bad; among
// equals the earlier row does. Tensors of integers and those with fewer than nine steps are
// `unranked`. Memory as for top(), and some histories of one rank. Throws as read_run().
TopOfRun most_unusual(const std::filesystem::path& run, const ReadOptions& options, Stat stat,
                      std::size_t count);

}  // namespace trainmon
