#include "read/row_filter.h"

#include <algorithm>

#include "base/text.h"
#include "trainmon/config.h"

namespace trainmon {

bool chooses_rows(const ReadOptions& options) {
  return !options.kinds.empty() || !options.include.empty() || !options.exclude.empty() ||
         !options.ranks.empty() || options.first_step || options.last_step;
}

std::string no_match_text(const RunRows& run, std::int64_t rows, const ReadOptions& options) {
  if (rows > 0 || !chooses_rows(options) || options.only_bad) return "";
  std::string text = "no row matches this selection; the run has ranks";
  for (const int rank : run.ranks) text += " " + std::to_string(rank);
  // Those of ranks that were not read are not known.
  if (!run.kinds.empty()) text += " and kinds";
  for (const std::string& kind : run.kinds) text += " " + printable(kind);
  return text;
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
