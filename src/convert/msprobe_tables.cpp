// Names and numbers as msprobe's own converters give them.
#include "convert/msprobe_tables.h"

#include <algorithm>
#include <cmath>

#include "convert/msprobe_view.h"

namespace trainmon::msprobe_tables {
MetricStats metric_stats(const Source& source, std::string_view type,
                         const std::vector<std::string>& given) {
  const std::vector<std::string> all = MsprobeView::stats(source, given);
  const std::vector<std::string> own = MsprobeView::stats_of(source, type, given);
  MetricStats found;
  for (const std::string_view name : kStats) {
    if (std::find(own.begin(), own.end(), name) == own.end()) continue;
    found.names.emplace_back(name);
    found.places.push_back(
        static_cast<std::size_t>(std::find(all.begin(), all.end(), name) - all.begin()));
  }
  return found;
}

std::string places(std::size_t count) {
  std::string text = "?";
  for (std::size_t i = 1; i < count; ++i) text += ",?";
  return text;
}

std::string real_columns(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += ", " + name + " REAL DEFAULT NULL";
  return text;
}

void bind(Statement& statement, double value, bool is_absent) {
  if (is_absent || std::isnan(value)) {
    statement.null();
  } else {
    statement.real(value);
  }
}

}  // namespace trainmon::msprobe_tables
