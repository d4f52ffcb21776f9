// What msprobe's two SQLite schemas have in common.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sinks/sqlite_file.h"
#include "sources/msprobe_files.h"
#include "sources/source.h"

namespace trainmon::msprobe_tables {

// In the order of columns.
inline constexpr std::array<std::string_view, 14> kStats = {
    "norm",        "min", "max",         "zeros", "nans",     "mean",  "entropy",
    "softmax_max", "sr",  "kernel_norm", "std_x", "jacobian", "proxy", "token_similarity"};
// The statistics that rows of a type have there, in the order of columns.
struct MetricStats {
  std::vector<std::string> names;
  std::vector<std::size_t> places;  // among the view's statistics
};

MetricStats metric_stats(const Source& source, std::string_view type,
                         const std::vector<std::string>& given);
// "?,?,?"
std::string places(std::size_t count);
// ", norm REAL DEFAULT NULL, ..."
std::string real_columns(const std::vector<std::string>& names);
// NaN and what is not there as NULL.
void bind(Statement& statement, double value, bool is_absent);

inline constexpr const char* kMetricsTable =
    "CREATE TABLE monitoring_metrics (metric_id INTEGER PRIMARY KEY AUTOINCREMENT, metric_name "
    "TEXT UNIQUE NOT NULL)";

// Names of tensors and their numbers.
class Targets {
 public:
  explicit Targets(Database& database)
      : insert_(database.prepare("INSERT INTO monitoring_targets VALUES (?,?,?,?)")) {}
  static constexpr const char* kTable =
      "CREATE TABLE monitoring_targets (target_id INTEGER PRIMARY KEY AUTOINCREMENT, "
      "target_name TEXT NOT NULL, vpp_stage INTEGER NOT NULL, micro_step INTEGER NOT NULL DEFAULT "
      "0, UNIQUE(target_name, vpp_stage, micro_step))";

  std::int64_t number(std::string_view name, std::int64_t chunk, std::int64_t micro_step) {
    key_.assign(name);
    key_ += '\0';
    key_ += std::to_string(chunk) + ":" + std::to_string(micro_step);
    const auto known = ids_.find(key_);
    if (known != ids_.end()) return known->second;
    const auto id = static_cast<std::int64_t>(ids_.size()) + 1;
    insert_.integer(id).text(name).integer(chunk).integer(micro_step).run();
    ids_.emplace(key_, id);
    return id;
  }

 private:
  Statement insert_;
  std::unordered_map<std::string, std::int64_t> ids_;
  std::string key_;
};

}  // namespace trainmon::msprobe_tables
