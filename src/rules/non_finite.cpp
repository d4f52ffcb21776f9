// Counts per series; the message says what the first row held.
#include "rules/non_finite.h"

#include <utility>

#include "rules/check.h"

namespace trainmon {
void NonFiniteRule::look(const RecordBatch& batch, const SeriesTable& series,
                         std::vector<Alert>& alerts) {
  for (const Row& row : batch.rows) {
    if ((row.key.flags & flag::kNonFinite) == 0) continue;
    Seen& seen = seen_[row.key.series];
    if (seen.count++ == 0) seen.first = row.key;
    if ((seen.count & (seen.count - 1)) != 0) continue;
    Alert alert;
    alert.rule = name();
    alert.key = seen.first;
    alert.message = non_finite_text(series.at(row.key.series), row.state);
    alert.count = seen.count;
    alerts.push_back(std::move(alert));
  }
}

}  // namespace trainmon
