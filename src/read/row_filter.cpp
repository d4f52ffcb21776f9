#include "read/row_filter.h"

#include <algorithm>

#include "trainmon/config.h"

namespace trainmon {

bool chooses_rows(const ReadOptions& options) {
  return !options.kinds.empty() || !options.include.empty() || !options.exclude.empty() ||
         !options.ranks.empty() || options.first_step || options.last_step;
}

bool RowFilter::takes_rank(int rank) const {
  const std::vector<int>& asked = options_.ranks;
  return asked.empty() || std::find(asked.begin(), asked.end(), rank) != asked.end();
}

bool RowFilter::takes_name(std::string_view name) const {
  return name_selected(name, options_.include, options_.exclude);
}

bool RowFilter::takes_step(std::int64_t step) const {
  return step >= options_.first_step.value_or(step) && step <= options_.last_step.value_or(step);
}

}  // namespace trainmon
