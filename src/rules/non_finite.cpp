// Counts per series; the message says what the first row held.
#include "rules/non_finite.h"

#include <string>

#include "base/text.h"

namespace trainmon {
namespace {

std::string describe(const Series& series, const RowState& state) {
  std::string text = series.kind + " " + (series.name.empty() ? "(root)" : series.name);
  if (!series.element.empty()) text += " " + series.element;
  text += ":";
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
    alerts.push_back({std::string(name()), seen.first, -1,
                      describe(series.at(row.key.series), row.state), seen.count});
  }
}

}  // namespace trainmon
