// Builds run directories through the real sink, as a monitor would.
#pragma once

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "records.h"
#include "scratch.h"
#include "sinks/sinks.h"
#include "trainmon/read.h"

namespace trainmon {

inline std::filesystem::path rank_path(const std::filesystem::path& run, int rank, int restart) {
  char name[64];
  std::snprintf(name, sizeof name, "rank_%05d/restart_%04d", rank, restart);
  return run / name;
}

// One rank and restart being written. Rows go into batches of one window each.
class WrittenRank {
 public:
  WrittenRank(const std::filesystem::path& run, int rank, int restart,
              const std::string& more_facts = "\"start_steps\": [0]", std::size_t segment = 1 << 20)
      : directory_(rank_path(run, rank, restart)) {
    make_directories(directory_);
    write_atomically(directory_ / "run.json",
                     "{\"run_id\": \"r\", \"rank\": " + std::to_string(rank) +
                         ", \"restart\": " + std::to_string(restart) + ", " + more_facts + "}");
    RunInfo info;
    info.directory = directory_;
    info.run_id = "r";
    info.rank = rank;
    info.restart = restart;
    log_ = make_log_sink(segment);
    log_->open(info, series_);
  }

  const std::filesystem::path& directory() const { return directory_; }
  SeriesId add(Series series) { return series_.add(std::move(series)); }
  ShapeId add(const Shape& shape) { return series_.add(shape); }
  SeriesId add(std::string kind, std::string name) {
    Series series;
    series.kind = std::move(kind);
    series.name = std::move(name);
    return add(series);
  }
  Row& row(SeriesId series, std::int64_t window, RowState state = one(1.0)) {
    batch_.rows.push_back({{series, 0, window, 0, 0, next_seq_++}, state});
    if (state.non_finite()) batch_.rows.back().key.flags |= flag::kNonFinite;
    return batch_.rows.back();
  }
  void outcome(std::int64_t window, std::int64_t step, Fate fate = Fate::taken, int attempt = 0,
               int optimizer = 0) {
    batch_.outcomes.push_back({optimizer, window, step, attempt, fate, 1.0});
  }
  RecordBatch& batch() { return batch_; }
  void write() {
    batch_.number = next_number_++;
    log_->write(batch_);
    batch_ = RecordBatch();
  }

  // health.json as a monitor would leave it, with the sink log alone.
  void write_health(int produced, int written, int dropped, bool closed) const {
    write_atomically(directory_ / "health.json",
                     "{\"rows_produced\": " + std::to_string(produced) +
                         ", \"rows_pending\": 0, \"sinks\": [{\"name\": \"log\", "
                         "\"rows_written\": " +
                         std::to_string(written) +
                         ", \"rows_dropped\": {\"no_space\": " + std::to_string(dropped) +
                         "}, \"degraded\": false}], \"errors\": 2, \"closed\": " +
                         (closed ? "true" : "false") + "}");
  }

  // The state of a tensor with one element.
  static RowState one(double value) {
    RowState s;
    s.count = 1;
    s.sum = s.mean = s.min = s.max = value;
    s.sum_sq = value * value;
    s.absmax = value < 0 ? -value : value;
    return s;
  }
  static RowState nan() {
    RowState s;
    s.count = s.nans = 1;
    return s;
  }

 private:
  std::filesystem::path directory_;
  ListedSeries series_;
  std::unique_ptr<Sink> log_;
  RecordBatch batch_;
  std::uint64_t next_seq_ = 0;
  std::uint64_t next_number_ = 0;
};

}  // namespace trainmon
