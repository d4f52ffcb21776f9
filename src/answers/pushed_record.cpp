#include "answers/pushed_record.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>

#include "read/log_segments.h"

namespace trainmon {
namespace {

constexpr std::array<std::string_view, kScalarsDropped + 1> kOfRecord = {
    "non_finite",       "alerts",         "skipped",     "rows_dropped",       "gaps",
    "last_step",        "damaged_places", "lag_seconds", "series_left_out",    "queue_bytes",
    "queue_bytes_peak", "queue_seconds",  "log_bytes",   "dropped_queue_full", "dropped_max_series",
    "dropped_other",    "scalars_dropped"};

// By reason, in the sink of the rank that lost most for it.
std::int64_t most_dropped(const Health& health, const auto& counts) {
  std::int64_t most = 0;
  for (const SinkHealth& sink : health.sinks) {
    std::int64_t rows = 0;
    for (const auto& [reason, dropped] : sink.rows_dropped) rows += counts(reason) ? dropped : 0;
    most = std::max(most, rows);
  }
  return most;
}

}  // namespace

std::vector<PushedSeries> record_and(const std::vector<PushedSeries>& chosen) {
  std::vector<PushedSeries> all;
  for (const std::string_view name : kOfRecord)
    all.push_back({Family::own, "", std::string(name), -1});
  std::ranges::copy_if(chosen, std::back_inserter(all),
                       [](const PushedSeries& one) { return one.family != Family::own; });
  return all;
}

std::vector<std::pair<std::uint32_t, double>> monitors_now(
    const std::vector<RankDirectory>& ranks) {
  std::int64_t queue = 0, peak = 0, log = 0, full = 0, beyond = 0, other = 0, scalars = 0;
  double seconds = 0.0;
  bool is_told = false;
  for (const RankDirectory& rank : ranks) {
    std::vector<Damage> said_elsewhere;
    const std::optional<StoredHealth> stored = read_health_json(rank, said_elsewhere);
    if (!stored) continue;
    is_told = true;
    const Health& health = stored->health;
    queue = std::max(queue, health.queue_bytes);
    peak = std::max(peak, health.queue_bytes_peak);
    seconds = std::max(seconds, health.queue_seconds);
    log += log_bytes(rank.path);
    const auto is_full = [](std::string_view reason) { return reason == "queue_full"; };
    const auto is_beyond = [](std::string_view reason) { return reason == "max_series"; };
    full += most_dropped(health, is_full);
    beyond += most_dropped(health, is_beyond);
    other += most_dropped(
        health, [&](std::string_view reason) { return !is_full(reason) && !is_beyond(reason); });
    for (const auto& [reason, values] : health.scalars_dropped) scalars += values;
  }
  if (!is_told) return {};
  return {{kQueueBytes, static_cast<double>(queue)},
          {kQueueBytesPeak, static_cast<double>(peak)},
          {kQueueSeconds, seconds},
          {kLogBytes, static_cast<double>(log)},
          {kDroppedQueueFull, static_cast<double>(full)},
          {kDroppedMaxSeries, static_cast<double>(beyond)},
          {kDroppedOther, static_cast<double>(other)},
          {kScalarsDropped, static_cast<double>(scalars)}};
}

}  // namespace trainmon
