// What health.json is told of a pipe.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "pipe/pipe.h"

namespace trainmon {

double Pipe::waited(std::int64_t in_queue_ns) const {
  const std::int64_t taken_ns = oldest_taken_ns_.load(std::memory_order_relaxed);
  const std::int64_t oldest = taken_ns != 0 ? taken_ns : in_queue_ns;
  if (oldest == 0) return 0.0;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::chrono::nanoseconds age = now - std::chrono::nanoseconds(oldest);
  return std::max(0.0, std::chrono::duration<double>(age).count());  // clocks are set back
}

void Pipe::report(Health& health, std::int64_t produced) const {
  auto queue_drops = queue_.dropped();
  if (const std::int64_t beyond = beyond_series_; beyond > 0) queue_drops[kMaxSeries] = beyond;
  std::int64_t queue_lost = 0;
  for (const auto& [reason, rows] : queue_drops) queue_lost += rows;
  const BatchQueue::Fill fill = queue_.fill();
  const std::lock_guard lock(account_mutex_);
  health.rows_produced = produced;
  health.alerts = alerts_;
  health.errors += errors_;
  health.queue_bytes = static_cast<std::int64_t>(fill.bytes);
  health.queue_bytes_peak = static_cast<std::int64_t>(fill.peak_bytes);
  health.queue_seconds = waited(fill.oldest_ns);
  for (const Outlet& outlet : outlets_) {
    SinkHealth sink{.name = std::string(outlet.sink->name()),
                    .rows_written = outlet.written,
                    .rows_dropped = outlet.dropped,
                    .degraded = outlet.degraded,
                    .batches_written = outlet.batches};
    if (outlet.lost_to_memory > 0) sink.rows_dropped[kNoMemory] += outlet.lost_to_memory;
    for (const auto& [reason, values] : outlet.scalars_dropped) {
      std::int64_t& most = health.scalars_dropped[reason];
      most = std::max(most, values);
    }
    try {
      sink.rows_deleted = outlet.sink->rows_deleted();
      sink.rows_expired = outlet.sink->rows_expired();
      for (const auto& [reason, rows] : outlet.sink->rows_left_out()) {
        sink.rows_written -= rows;
        sink.rows_dropped[reason] += rows;
      }
    } catch (...) {  // of a sink of the user: nothing is known
    }
    std::int64_t accounted = sink.rows_written + queue_lost;
    for (const auto& [reason, rows] : sink.rows_dropped) accounted += rows;
    for (const auto& [reason, rows] : queue_drops) sink.rows_dropped[reason] += rows;
    const std::int64_t open = produced - accounted;
    if (abandoned_ && open > 0) {
      sink.rows_dropped["stop_timeout"] += open;
    } else {
      health.rows_pending = std::max(health.rows_pending, open);
    }
    health.sinks.push_back(std::move(sink));
  }
}

}  // namespace trainmon
