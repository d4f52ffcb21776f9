// One rank and restart of a run as it grows, step by step.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/timeline.h"
#include "read/bad_place.h"
#include "read/log_tail.h"
#include "read/row_filter.h"
#include "read/run_layout.h"
#include "trainmon/read.h"

namespace trainmon {

inline constexpr int kTailPatience = 3;  // looks that find nothing before a step is told anyway

// What one rank saw of one window: of a step, or of one attempt at it.
struct TailStep {
  std::int32_t restart = 0;
  std::int32_t rank = 0;
  Outcome outcome;           // backwards is not known here
  bool is_closed = false;    // its outcome is known
  std::int64_t time_ns = 0;  // of the newest batch with something of it
  std::int64_t rows = 0;
  std::int64_t non_finite = 0;                 // elements, over all rows
  std::map<std::string, std::int64_t> alerts;  // by rule: findings of which it is the first
  std::int64_t alert_count() const;            // over all rules
  std::int64_t rows_lost = 0;                  // as gaps say
  std::int64_t gaps = 0;
  std::map<std::string, double> norms;  // by kind: over all tensors; of running sums the last
  // The first tensor that is not finite or, without one, that of the largest norm among gradients
  // (of other kinds where there are none).
  Series worst;
  double worst_norm = 0.0;
  std::vector<std::pair<std::string, double>> scalars;  // in the order they were logged
  // Of each series the norm, where TailOf::clock_steps are asked for; of several calls over all.
  std::vector<std::pair<const Series*, double>> tensors;
};

struct TailRow {
  ReadRow
      row;  // its `series` and `shape` say nothing; a step not known yet is the one that follows
  Series series;
};

struct TailNews {
  std::vector<TailStep> steps;    // in the order they ended, rank by rank
  std::vector<TailRow> rows;      // instead, where rows were asked for
  std::vector<ReadAlert> alerts;  // of steps that were told already; key.series says nothing
  std::vector<Damage> damage;
  // Of the first look, as RunRows has them; without what only a whole log tells.
  std::vector<std::string> earlier;
  std::vector<std::string> expired;
  std::vector<std::string> incomplete;
  std::int64_t rows_late = 0;  // of steps that were told already
};

// Of two tensors together; NaN where one is, for hypot(inf, NaN) is inf.
double joined_norm(double a, double b);

enum class TailOf : std::uint8_t {
  steps,        // of every optimizer
  rows,         // instead
  clock_steps,  // of the clock; what other optimizers do belongs to the one that goes on meanwhile
};

class RankTail {
 public:
  // Begins `segments` before the end of what the first look finds.
  RankTail(RankDirectory directory, const RowFilter& filter, TailOf tells, std::size_t segments);

  // Reads what is new, and stops behind some `most` bytes; whether there were any. Pointers to
  // series in `news` hold as long as this object.
  bool look(TailNews& news, std::int64_t most = LogTail::kAll);
  // Steps that have not ended.
  void unfinished(TailNews& news);
  // What is missing of the log: before what was read, and of a closed one behind it.
  void check(std::vector<Damage>& damage) const;

  bool is_whole() const { return log_.is_whole(); }
  const RankDirectory& directory() const { return directory_; }
  std::vector<std::string> kinds() const;

 private:
  using WindowKey = std::pair<std::int32_t, std::int64_t>;  // optimizer, window
  // A window while it is open.
  struct OpenWindow {
    TailStep step;
    // Of the running sums of an accumulation the last counts.
    std::map<std::pair<SeriesId, std::int32_t>, double> norms;
    const Series* bad = nullptr;
    BadPlace bad_place;
    double bad_norm = 0.0;
  };

  void read_facts(std::vector<Damage>& damage);
  OpenWindow* window(std::int32_t optimizer, std::int64_t number, const RecordBatch& batch);
  void take(RecordBatch&& batch, TailNews& news);
  void take_row(const Row& row, const RecordBatch& batch, TailNews& news);
  void tell_row(const Row& row, const Series& series, TailNews& news);
  void note_number(std::uint64_t number);
  bool has_ended(const WindowKey& key, const OpenWindow& window) const;
  void tell_ended(TailNews& news);
  void tell(OpenWindow& window, TailNews& news);
  double norm_of(const OpenWindow& window, std::string_view kind) const;

  const RankDirectory directory_;
  const RowFilter filter_;
  const TailOf tells_;
  LogTail log_;
  RunFacts facts_;
  bool has_facts_ = false;
  Timeline timeline_;
  std::map<WindowKey, OpenWindow> open_;
  std::map<std::int32_t, std::int64_t> told_;              // optimizer -> newest window told
  std::map<std::int32_t, std::int64_t> newest_;            // optimizer -> newest window seen
  std::map<std::int32_t, std::uint64_t> batch_of_newest_;  // and the batch that began it
  std::optional<std::uint64_t> next_number_;
  std::set<std::uint64_t> ahead_;
  std::uint64_t newest_batch_ = 0;
  std::int64_t lost_ = 0;
  std::int64_t gaps_ = 0;
  int quiet_looks_ = 0;
};

// Why the record of these ranks is not complete, a sentence each.
std::vector<std::string> incompleteness(const std::vector<RankDirectory>& directories,
                                        const RowFilter& filter);

}  // namespace trainmon
