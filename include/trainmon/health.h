// The account of a monitor: where its rows went, what it lost, and which parts failed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trainmon {

// Counters of one sink. rows_produced = rows_written + sum of rows_dropped (+ pending while
// running).
struct SinkHealth {
  std::string name;
  std::int64_t rows_written = 0;
  std::map<std::string, std::int64_t> rows_dropped;  // reason -> rows
  bool degraded = false;                             // the last write failed
  std::int64_t batches_written = -1;                 // with and without rows; -1: not known
  std::int64_t rows_deleted = 0;  // of rows_written, with their file; health.json has no such key
  std::int64_t rows_expired = 0;  // of rows_written, by retention_mb and retention_days; likewise
};
struct Health {
  std::int64_t rows_produced = 0;
  std::int64_t rows_pending = 0;  // sealed or open, not yet with the sinks
  std::vector<SinkHealth> sinks;
  std::map<std::string, std::int64_t> refused;          // reason -> tensors never measured
  std::map<std::string, std::int64_t> scalars_dropped;  // reason -> logged values not recorded
  std::map<std::string, std::string> parts_off;         // part that switched itself off -> why
  std::int64_t errors = 0;                              // errors inside trainmon
  std::int64_t alerts = 0;
  std::int64_t queue_bytes = 0;  // wait for the writer thread, or for a device, at this moment
  std::int64_t queue_bytes_peak = 0;
  double queue_seconds = 0.0;  // since the oldest of them was sealed; 0 where none waits
};

}  // namespace trainmon
