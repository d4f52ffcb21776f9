// What the pictures of a page show, read from one run or two.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "report/cell_table.h"
#include "report/histogram_table.h"
#include "report/report.h"

namespace trainmon::page {

// Steps between which rows of a rank were lost.
struct Loss {
  int rank = 0;
  int restart = 0;
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::int64_t rows = 0;
  std::string reason;
};

// What a rank recorded of a kind.
struct RankFacts {
  std::int64_t steps = 0;
  std::int64_t rows = 0;
  std::int64_t tensors = 0;
};

struct KindFacts {
  std::map<int, RankFacts> ranks;
  std::int64_t steps = 0;  // that were recorded, of the rank with most of them
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::int64_t rows = 0;
};

// What stands beside the rows of a run.
struct GatheredRun {
  std::map<std::string, KindFacts> kinds;
  std::map<int, std::int64_t> restarts;  // -> the first step that it has rows of
  std::vector<Loss> losses;
  std::vector<Damage> damage;
  std::int64_t count = 0;  // rows
};

struct Gathered {
  CellTable rows;    // a kind of rows each; the value is the norm
  CellTable curves;  // kinds "logged", "declared" and "norm" (of all tensors of a kind together)
  HistogramTable histograms;
  std::vector<GatheredRun> runs;
  // Names of tensors of the second run -> of the first one, where wrappers make them differ.
  std::map<std::string, std::string> renamed;
};

// One run or two. Around `close_step` each step has a column of its own; below 0: there is no such
// step.
Gathered gather(std::span<const std::filesystem::path> runs, const ReportOptions& options,
                std::int64_t close_step);

}  // namespace trainmon::page
