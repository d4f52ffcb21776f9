// Where batches go: one sink per output format, called from the writer thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "trainmon/record.h"

namespace trainmon {

// What a sink must know about the run it writes.
struct RunInfo {
  std::filesystem::path directory;  // of this rank and restart; exists, owned by this process alone
  std::string run_id;
  int rank = 0;
  int world_size = 1;
  int restart = 0;
  double eps = kDefaultEps;
};

// Contract: a batch is taken whole or not at all. When write() throws (SinkError names the reason),
// nothing of that batch may ever be read back, and the pipe counts its rows as dropped for this
// sink; the next write() may succeed again. `series` outlives the sink.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual std::string_view name() const = 0;
  virtual void open(const RunInfo& run, const SeriesTable& series) = 0;
  virtual void write(const RecordBatch& batch) = 0;
  // Hands everything taken so far to the operating system. Called at every flush interval, whether
  // something was written or not, and after every batch with an alert.
  virtual void flush() = 0;
  virtual void close() = 0;
  // Of the rows taken, those that its format has no place for, by reason: they count as dropped,
  // not as written. Any thread, at any time; must not wait.
  virtual std::map<std::string, std::int64_t> rows_left_out() const { return {}; }
};

}  // namespace trainmon
