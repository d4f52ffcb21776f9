// A run as it grows: what was written since the last look, of every rank and restart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "read/account.h"
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
  std::int64_t non_finite = 0;          // elements, over all rows
  std::int64_t alerts = 0;              // findings of which it is the first
  std::int64_t rows_lost = 0;           // as gaps say
  std::map<std::string, double> norms;  // by kind: over all tensors; of running sums the last
  // The first tensor that is not finite or, without one, that of the largest norm among gradients
  // (of other kinds where there are none).
  Series worst;
  double worst_norm = 0.0;
  std::vector<std::pair<std::string, double>> scalars;  // in the order they were logged
};

struct TailRow {
  ReadRow
      row;  // its `series` and `shape` say nothing; a step not known yet is the one that follows
  Series series;
};

struct TailNews {
  std::vector<TailStep> steps;  // in the order they ended, rank by rank
  std::vector<TailRow> rows;    // instead, where rows were asked for
  std::vector<Damage> damage;
  // Of the first look, as RunRows has them; without what only a whole log tells.
  std::vector<std::string> earlier;
  std::vector<std::string> incomplete;
  std::int64_t rows_late = 0;  // of steps that were told already
};

class RunTail {
 public:
  // `newest` steps (or rows) per rank of the newest restart that has any are found again by the
  // first call of look(). Of `options` kinds, include, exclude and ranks are followed. Throws as
  // read_run().
  RunTail(std::filesystem::path run, const ReadOptions& options, bool wants_rows,
          std::size_t newest);
  ~RunTail();

  // Reads what is new. Never waits. A step is told when all its rows are there.
  TailNews look();
  // What has not ended: call it once, at the end.
  TailNews unfinished();

  std::size_t ranks() const;
  // How the newest start of the ranks followed ended: closed, or gone where one of them did not
  // stop in order. Unset while one goes on, or where that cannot be told from here.
  std::optional<WriterState> ended() const;

 private:
  class Place;
  using PlaceKey = std::pair<int, int>;  // rank, restart
  void find_places(TailNews& news);

  const std::filesystem::path run_;
  const ReadOptions options_;
  const bool wants_rows_;
  const std::size_t newest_;
  std::map<PlaceKey, std::unique_ptr<Place>> places_;
  bool is_first_ = true;
};

}  // namespace trainmon
