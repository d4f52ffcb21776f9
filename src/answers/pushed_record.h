// What a tracker is told of the record itself, beside its values.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "answers/series_choice.h"
#include "read/run_layout.h"

namespace trainmon {

// The numbers of these series, in this order; those from kDamaged on stand at the newest step
// alone.
enum OfRecord : std::uint8_t {
  kNonFinite,
  kAlerts,
  kSkipped,
  kRowsDropped,
  kGaps,
  kLastStep,
  kDamaged,
  kLag,
  kLeftOut,
  kQueueBytes,
  kQueueBytesPeak,
  kQueueSeconds,
  kLogBytes,
  kDroppedQueueFull,
  kDroppedMaxSeries,
  kDroppedOther,
  kScalarsDropped,
};

// They have the first numbers, whatever was chosen before.
std::vector<PushedSeries> record_and(const std::vector<PushedSeries>& chosen);

// What the monitors of these ranks say of themselves in health.json, together: the largest of
// the queues, and sums of the rest. Nothing where there is no such file.
std::vector<std::pair<std::uint32_t, double>> monitors_now(const std::vector<RankDirectory>& ranks);

}  // namespace trainmon
