// What the pictures of a page show, read from one run or two.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "answers/diagnose.h"
#include "read/open_logs.h"
#include "read/run_growth.h"
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
  std::optional<LeftHistory> left_history;
};

struct Gathered {
  CellTable rows;    // a kind of rows each; the value is the norm
  CellTable curves;  // kinds "logged", "declared" and "norm" (of all tensors of a kind together)
  HistogramTable histograms;
  std::vector<GatheredRun> runs;
  // Names of tensors of the second run -> of the first one, where wrappers make them differ.
  std::map<std::string, std::string> renamed;
};

// One run or two, with the diagnosis of each. Around `close_step` each step has a column of its
// own; below 0: there is no such step.
Gathered gather(std::span<const OpenedRun> runs, std::span<const Diagnosis* const> diagnoses,
                const ReportOptions& options, std::int64_t close_step);

// How much there may be, and the steps that have columns of their own.
struct Sizes {
  std::int64_t cells = 0;
  std::int64_t histogram_bytes = 0;
  std::int64_t first_close = 0;
  std::int64_t last_close = 0;
  bool operator==(const Sizes&) const = default;
};

class RankRows;

// Of one run that grows: what gather() gives each time, from the rows that are new. Where that is
// not sure to be the same, all rows are read again. Between two looks it keeps at most four times
// the cells of a table, or nothing. One thread.
class GrowingGather {
 public:
  GrowingGather();
  ~GrowingGather();

  // All ranks of the run are open, and no options choose rows.
  Gathered look(const OpenedRun& run, const Diagnosis& diagnosis, const ReportOptions& options,
                std::int64_t close_step);
  // For the newest pictures.
  std::int64_t rows_read() const { return rows_read_; }

 private:
  void forget();

  RunGrowth growth_;
  Sizes sizes_;
  std::map<int, RankRows> ranks_;  // of the rows that stay
  std::optional<HistogramTable> histograms_;
  std::int64_t rows_read_ = 0;
};

}  // namespace trainmon::page
