// Counts per series; the message says what the first row held.
#include "rules/non_finite.h"

#include <string>
#include <utility>

#include "base/text.h"
#include "rules/check.h"

namespace trainmon {
namespace {

std::string describe(const Series& series, const RowState& state) {
  std::string text = series_text(series) + ":";
  const auto part = [&text](std::int64_t count, const char* what) {
    if (count > 0) text += " " + grouped(count) + " " + what;
  };
  part(state.nans, "NaN");
  part(state.pos_infs, "+Inf");
  part(state.neg_infs, "-Inf");
  return text + " of " + grouped(state.count) + " elements";
}

}  // namespace

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
    alert.message = describe(series.at(row.key.series), row.state);
    alert.count = seen.count;
    alerts.push_back(std::move(alert));
  }
}

}  // namespace trainmon
