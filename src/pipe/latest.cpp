// Rows wait with their window until its outcome arrives; older windows of that optimizer go.
#include "pipe/latest.h"

namespace trainmon {

void Latest::look(const RecordBatch& batch, const SeriesTable& series) {
  const std::lock_guard lock(mutex_);
  for (const Row& row : batch.rows) {
    if (used_ + sizeof(Row) > limit_) break;
    used_ += sizeof(Row);
    open_[{series.at(row.key.series).optimizer, row.key.window}].push_back(row);
  }
  for (const Outcome& outcome : batch.outcomes) {
    const auto found = open_.find({outcome.optimizer, outcome.window});
    if (found == open_.end()) continue;
    std::vector<Row>& done = done_[outcome.optimizer];
    used_ -= done.size() * sizeof(Row);
    done = std::move(found->second);
    // Rows of windows before this one came too late to be anybody's latest.
    for (auto old = open_.lower_bound({outcome.optimizer, INT64_MIN});
         old != open_.end() && old->first <= Window{outcome.optimizer, outcome.window};) {
      if (old->first.second != outcome.window) used_ -= old->second.size() * sizeof(Row);
      old = open_.erase(old);
    }
  }
}

std::vector<Row> Latest::rows() const {
  const std::lock_guard lock(mutex_);
  std::vector<Row> all;
  for (const auto& [optimizer, rows] : done_) all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

}  // namespace trainmon
