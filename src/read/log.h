// Reads the log of one rank and restart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "model/timeline.h"
#include "read/log_series.h"
#include "read/window_set.h"
#include "trainmon/read.h"
#include "trainmon/record.h"

namespace trainmon {

// What the writer of a rank has deleted of a log to keep to retention_mb and retention_days
// (retention.json, docs/formats.md).
struct Expired {
  int first_segment = 0;     // the first one that is kept; 0: nothing was deleted
  std::int64_t rows = 0;     // payloads among them; -1: not known
  std::int64_t batches = 0;  // -1: not known
};

// All that the log of one rank and restart holds.
struct LogContents {
  LogSeries series;                  // every series, wanted or not
  std::vector<RecordBatch> batches;  // by number, of wanted series only
  std::int64_t batch_count = 0;      // also of those that are not in `batches`
  std::int64_t last_time_ns = 0;     // of the newest batch, since 1970; 0: none
  Timeline outcomes;                 // of a first pass; its batches then have none
  WindowSet windows;                 // of every row
  std::int64_t rows = 0;             // of all series, payloads among them
  std::int64_t payloads = 0;
  std::int64_t files = 0;
  std::int64_t bytes = 0;
  std::int64_t torn_tails = 0;  // unfinished last writes: those of a killed or living run
  Expired expired;
  std::vector<Damage> damage;
};
// Reads the segments (docs/formats.md) in `directory`, RUN/rank_00000/restart_0000, also while they
// are being written. `rank` and `restart` say whose they must be; others' segments are damage.
// Whatever the bytes are: no exception but std::bad_alloc, no wrong row, no silent loss.
LogContents read_log(const std::filesystem::path& directory, int rank, int restart,
                     const std::function<bool(const Series&)>& wanted = {});
// The same without rows and payloads, though every value was decoded; what else there is stands in
// one batch. On so many threads, each with a segment in memory; their number changes nothing.
LogContents check_log(const std::filesystem::path& directory, int rank, int restart,
                      unsigned threads = 1);

}  // namespace trainmon
