#include "pipe/owed.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace trainmon {
namespace {

constexpr std::size_t kMostOutcomes = 1 << 16;  // and as many scalars
constexpr std::size_t kMostAlerts = 1 << 12;

bool is_repeat_of(const Alert& a, const Alert& b) {
  return a.key.seq == b.key.seq && a.key.series == b.key.series && a.rule == b.rule &&
         a.stat == b.stat;
}

// A repeat replaces what it repeats. Beyond the limit the last alert of the same rule stands for
// what comes, by its count. So an alert is never lost, and the memory is bounded.
void add_alert(std::vector<Alert>& owed, const Alert& alert) {
  const auto known = std::find_if(owed.rbegin(), owed.rend(),
                                  [&](const Alert& one) { return is_repeat_of(one, alert); });
  if (known != owed.rend()) {
    known->count = std::max(known->count, alert.count);
    return;
  }
  const auto same_rule = [&](const Alert& one) { return one.rule == alert.rule; };
  const auto last =
      owed.size() < kMostAlerts ? owed.rend() : std::find_if(owed.rbegin(), owed.rend(), same_rule);
  if (last == owed.rend()) {
    owed.push_back(alert);
  } else {
    last->count += alert.count;
  }
}

// As many as there is room for, the first ones; how many.
template <typename T>
std::size_t add_some(std::vector<T>& owed, const std::vector<T>& more) {
  const std::size_t count = std::min(kMostOutcomes - owed.size(), more.size());
  owed.insert(owed.end(), more.begin(), more.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

template <typename T>
void put_before(std::vector<T>& list, const std::vector<T>& first) {
  list.insert(list.begin(), first.begin(), first.end());
}

}  // namespace

std::int64_t Owed::add(const RecordBatch& batch, const char* reason) {
  reason_ = reason;
  records_.number = batch.number;
  records_.time_ns = batch.time_ns;
  for (const Alert& alert : batch.alerts) add_alert(records_.alerts, alert);
  for (const Gap& gap : batch.gaps) add_gap(records_.gaps, gap);
  if (batch.row_count() > 0) {
    const auto [first, last] = seq_range(batch);
    add_gap(records_.gaps, {reason, batch.row_count(), first, last});
  }
  add_some(records_.outcomes, batch.outcomes);
  if (records_.declared.size() + batch.declared.size() <= kMostOutcomes) {
    records_.declared.insert(records_.declared.end(), batch.declared.begin(), batch.declared.end());
  }
  return static_cast<std::int64_t>(batch.scalars.size() -
                                   add_some(records_.scalars, batch.scalars));
}

RecordBatch Owed::before(const RecordBatch& batch) const {
  RecordBatch whole = batch;
  put_before(whole.outcomes, records_.outcomes);
  put_before(whole.scalars, records_.scalars);
  put_before(whole.declared, records_.declared);
  put_before(whole.gaps, records_.gaps);
  put_before(whole.alerts, records_.alerts);
  return whole;
}

RecordBatch Owed::last() const {
  RecordBatch batch;
  batch.number = records_.number;
  batch.moment = Moment::stop;
  batch.time_ns = records_.time_ns;
  return batch;
}

}  // namespace trainmon
