// A row's fate is not known when it is written: it follows as an outcome of its own.
#include "sinks/live_table.h"

namespace trainmon {
namespace {

// Rows of late values refer to windows a little way back.
constexpr std::size_t kMostWindows = 1024;

}  // namespace

void LiveTable::learn(const RecordBatch& batch) {
  if (run_.start_steps) timeline_.set_start_steps(run_.start_steps());
  timeline_.add(batch);
  timeline_.keep_last(kMostWindows);
  place_ = {-1, -1};
  for (const Declared& group : batch.declared) {
    for (ReadDeclared& one : declared(group)) {
      declared_.insert_or_assign({one.optimizer, one.group, one.value.name}, std::move(one));
    }
  }
}

std::int32_t LiveTable::micro_step(std::int32_t accum) const {
  const std::int64_t steps = run_.grad_acc_steps.value_or(0);
  return steps > 0 ? static_cast<std::int32_t>(accum % steps) : accum;
}

std::vector<ReadDeclared> LiveTable::declared(const Declared& group) const {
  const std::int64_t step = place(group.optimizer, group.window).step;
  std::vector<ReadDeclared> values;
  for (const DeclaredValue& value : group.values) {
    values.push_back(
        {run_.restart, run_.rank, step, group.optimizer, group.group, group.window, value});
  }
  return values;
}

std::vector<ReadDeclared> LiveTable::declared_so_far() const {
  std::vector<ReadDeclared> values;
  for (const auto& [key, value] : declared_) values.push_back(value);
  return values;
}

const TableRow& LiveTable::line(const Row& row) {
  const Series& series = series_->at(row.key.series);
  if (place_.optimizer != series.optimizer || place_.window != row.key.window) {
    place_ = place(series.optimizer, row.key.window);
  }
  line_.restart = run_.restart;
  line_.rank = run_.rank;
  line_.series = &series;
  line_.step = place_.step;
  line_.attempt = place_.attempt;
  line_.micro_step = micro_step(row.key.accum);
  line_.call = row.key.call;
  line_.seq = row.key.seq;
  line_.flags = row.key.flags;
  line_.window = row.key.window;
  line_.accum = row.key.accum;
  line_.shape = series_->shape_of(row);
  line_.absent = 0;
  for (std::size_t i = 0; i < kStatCount; ++i) {
    values_[i] = derive(static_cast<Stat>(i), row.state);
    if (!is_told(static_cast<Stat>(i), row.state)) line_.absent |= std::uint64_t{1} << i;
  }
  line_.values = values_;
  return line_;
}

}  // namespace trainmon
