// Where batches go: one sink per output format, called from the writer thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
  int clock = 0;                               // optimizer whose windows scalars follow
  std::optional<std::int64_t> grad_acc_steps;  // backwards per step, where fixed and known
  // Per optimizer, the step of its first window as known now (docs/formats.md, start_steps). Any
  // thread, as long as the monitor lives; empty where nobody knows.
  std::function<std::vector<std::int64_t>()> start_steps;
};

// Contract: a batch is taken whole or not at all. When write() throws (SinkError names the reason),
// nothing of that batch may ever be read back. The pipe counts its rows as dropped for this sink,
// and the next write() may succeed again. `series` outlives the sink.
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
  // Of the rows written, those whose file somebody has deleted since. Likewise.
  virtual std::int64_t rows_deleted() const { return 0; }
  // Of the rows written, those that the sink has deleted to keep to its limits. Likewise.
  virtual std::int64_t rows_expired() const { return 0; }
};

}  // namespace trainmon
