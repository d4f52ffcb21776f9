// msprobe's two SQLite schemas, table by table as its own converters make them: tables
// metric_{id}_step_{a}_{b} (csv2db), and the one table trend_data (data2db).
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "convert/msprobe_view.h"
#include "convert/target.h"
#include "sinks/sqlite_file.h"

namespace trainmon {
namespace {

constexpr std::array<std::string_view, 14> kStats = {
    "norm",        "min", "max",         "zeros", "nans",     "mean",  "entropy",
    "softmax_max", "sr",  "kernel_norm", "std_x", "jacobian", "proxy", "token_similarity"};
// In the order in which they get their numbers.
constexpr std::array<std::string_view, 13> kMetrics = {"actv",
                                                       "actv_grad",
                                                       "exp_avg",
                                                       "exp_avg_sq",
                                                       "grad_unreduced",
                                                       "grad_reduced",
                                                       "param_origin",
                                                       "param_updated",
                                                       "other",
                                                       "attention_hook",
                                                       "linear_hook",
                                                       "moe_router_weight_hook",
                                                       "moe_router_logit_hook"};
constexpr std::size_t kTrendMetrics = 9;  // those that the newer schema has

struct MetricStats {
  std::vector<std::string> names;
  std::vector<std::size_t> places;  // among the view's statistics
};

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

void bind(Statement& statement, double value, bool is_absent) {
  if (is_absent || std::isnan(value)) {
    statement.null();
  } else {
    statement.real(value);
  }
}

class MsprobeDbTarget final : public Target {
 public:
  explicit MsprobeDbTarget(const TargetPlace& place)
      : source_(place.source),
        stats_(place.stats),
        partition_(place.options.step_partition),
        database_(place.path),
        view_(place.source, place.stats, [this](const MsprobeRow& row) { add(row); }) {
    database_.run("PRAGMA journal_mode = OFF");
    database_.run("PRAGMA synchronous = OFF");
    database_.run("BEGIN");
    database_.run(Targets::kTable);
    database_.run(
        "CREATE TABLE monitoring_metrics (metric_id INTEGER PRIMARY KEY AUTOINCREMENT, metric_name "
        "TEXT UNIQUE NOT NULL)");
    database_.run(
        "CREATE TABLE metric_stats (metric_id INTEGER NOT NULL, stat_name TEXT NOT NULL, PRIMARY "
        "KEY (metric_id, stat_name), FOREIGN KEY (metric_id) REFERENCES "
        "monitoring_metrics(metric_id)) WITHOUT ROWID");
    database_.run(
        "CREATE TABLE global_stats (stat_name TEXT PRIMARY KEY, stat_value INTEGER NOT NULL) "
        "WITHOUT ROWID");
    targets_.emplace(database_);
  }

  std::unique_ptr<RowWriter> writer(std::size_t) override { return std::make_unique<Hand>(*this); }

  void finish(RowAccount& account) override {
    view_.end();
    if (const auto named = source_.steps_of_names()) steps_ = named;
    if (steps_) {
      for (auto& [type, metric] : metrics_) {
        const std::int64_t last = steps_->second / partition_;
        for (std::int64_t p = steps_->first / partition_; p <= last; ++p) table(metric, p);
      }
    }
    Statement insert = database_.prepare("INSERT INTO global_stats VALUES (?,?)");
    const auto fact = [&](std::string_view name, std::int64_t value) {
      insert.text(name).integer(value).run();
    };
    fact("max_rank", max_rank_);
    fact("min_step", steps_ ? steps_->first : 0);
    fact("max_step", steps_ ? steps_->second : 0);
    fact("step_partition_size", partition_);
    database_.run("COMMIT");
    if (view_.left_out() > 0) {
      account.remark(std::to_string(view_.left_out()) +
                     " rows have no place in msprobe's tables (kinds that it does not know, "
                     "attempts that were not taken)");
    }
  }

 private:
  struct Metric {
    std::int64_t id = 0;
    MetricStats stats;
    std::map<std::int64_t, Statement> tables;  // by partition
  };
  struct Hand final : RowWriter {
    explicit Hand(MsprobeDbTarget& target) : target(target) {}
    void take(const TableRow& row) override { target.view_.add(row); }
    void end() override { target.view_.end(); }
    MsprobeDbTarget& target;
  };

  Metric& metric(std::string_view type) {
    const auto known = metrics_.find(type);
    if (known != metrics_.end()) return known->second;
    Metric fresh;
    fresh.id = static_cast<std::int64_t>(metrics_.size()) + 1;
    fresh.stats = metric_stats(source_, type, stats_);
    database_.prepare("INSERT INTO monitoring_metrics VALUES (?,?)")
        .integer(fresh.id)
        .text(type)
        .run();
    Statement insert = database_.prepare("INSERT INTO metric_stats VALUES (?,?)");
    for (const std::string& name : fresh.stats.names) insert.integer(fresh.id).text(name).run();
    return metrics_.emplace(std::string(type), std::move(fresh)).first->second;
  }

  Statement& table(Metric& metric, std::int64_t partition) {
    const auto known = metric.tables.find(partition);
    if (known != metric.tables.end()) return known->second;
    const std::string first = std::to_string(partition * partition_);
    const std::string last = std::to_string(partition * partition_ + partition_ - 1);
    const std::string name = "metric_" + std::to_string(metric.id) + "_step_" + first + "_" + last;
    database_.run("CREATE TABLE " + name +
                  " (rank INTEGER NOT NULL, step INTEGER NOT NULL CHECK(step BETWEEN " + first +
                  " AND " + last + "), target_id INTEGER NOT NULL" +
                  real_columns(metric.stats.names) +
                  ", PRIMARY KEY (rank, step, target_id), FOREIGN KEY (target_id) REFERENCES "
                  "monitoring_targets(target_id)) WITHOUT ROWID");
    return metric.tables
        .emplace(partition, database_.prepare("INSERT INTO " + name + " VALUES (" +
                                              places(3 + metric.stats.names.size()) + ")"))
        .first->second;
  }

  void add(const MsprobeRow& row) {
    Metric& of = metric(row.type);
    max_rank_ = std::max<std::int64_t>(max_rank_, row.rank);
    if (!steps_) steps_.emplace(row.step, row.step);
    steps_->first = std::min(steps_->first, row.step);
    steps_->second = std::max(steps_->second, row.step);
    Statement& insert = table(of, row.step / partition_);
    insert.integer(row.rank).integer(row.step).integer(
        targets_->number(row.name, row.chunk, row.micro_step));
    for (const std::size_t at : of.stats.places) {
      bind(insert, row.values[at], (row.absent >> at & 1) != 0);
    }
    insert.run();
  }

  const Source& source_;
  const std::vector<std::string>& stats_;
  const std::int64_t partition_;
  Database database_;
  std::optional<Targets> targets_;
  std::map<std::string, Metric, std::less<>> metrics_;
  MsprobeView view_;
  std::optional<std::pair<std::int64_t, std::int64_t>> steps_;
  std::int64_t max_rank_ = 0;
};

double clamped(double value) {
  constexpr double kMost = 1e9;
  if (std::isinf(value)) return value > 0 ? kMost + 1 : -kMost - 1;
  return std::clamp(value, -kMost, kMost);
}

// Parts of a name by which msprobe's trend view groups: "layers.3", "weight".
std::set<std::pair<std::string, std::string_view>> tags_of(std::string_view name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  const auto is_number = [](const std::string& part) {
    return !part.empty() &&
           std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  std::set<std::pair<std::string, std::string_view>> tags;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!is_number(parts[i])) {
      tags.emplace(parts[i], "module");
    } else if (i > 0 && !is_number(parts[i - 1])) {
      tags.emplace(parts[i - 1] + "." + parts[i], "layer");
    }
  }
  return tags;
}

class TrendTarget final : public Target {
 public:
  explicit TrendTarget(const TargetPlace& place)
      : source_(place.source),
        given_(place.stats),
        flattens_(place.options.micro_steps_are_steps),
        database_(place.path),
        view_(place.source, place.stats, [this](const MsprobeRow& row) { add(row); }) {
    if (flattens_) number_micro_steps(place);
    database_.run("PRAGMA journal_mode = OFF");
    database_.run("PRAGMA synchronous = OFF");
    database_.run("BEGIN");
    database_.run(Targets::kTable);
    database_.run(
        "CREATE TABLE monitoring_metrics (metric_id INTEGER PRIMARY KEY AUTOINCREMENT, metric_name "
        "TEXT UNIQUE NOT NULL)");
    database_.run(
        "CREATE TABLE monitoring_tags (tag_id INTEGER PRIMARY KEY AUTOINCREMENT, tag_name TEXT NOT "
        "NULL, category TEXT NOT NULL, metric_id INTEGER NOT NULL, UNIQUE(tag_name, category, "
        "metric_id), FOREIGN KEY (metric_id) REFERENCES monitoring_metrics(metric_id))");
    database_.run(
        "CREATE TABLE tag_target_mapping (tag_id INTEGER NOT NULL, target_id INTEGER NOT NULL, "
        "PRIMARY KEY (tag_id, target_id), FOREIGN KEY (tag_id) REFERENCES monitoring_tags(tag_id), "
        "FOREIGN KEY (target_id) REFERENCES monitoring_targets(target_id))");
    make_trend_table();
    targets_.emplace(database_);
    tag_.emplace(database_.prepare("INSERT INTO monitoring_tags VALUES (?,?,?,?)"));
    mapping_.emplace(database_.prepare("INSERT OR IGNORE INTO tag_target_mapping VALUES (?,?)"));
  }

  std::unique_ptr<RowWriter> writer(std::size_t) override { return std::make_unique<Hand>(*this); }

  void finish(RowAccount& account) override {
    view_.end();
    std::string columns =
        "min_step INTEGER DEFAULT 0, max_step INTEGER DEFAULT 0, max_rank INTEGER "
        "DEFAULT 0";
    for (const std::string_view type : kMetrics) {
      if (metrics_.contains(type)) columns += ", " + std::string(type) + " TEXT DEFAULT NULL";
    }
    database_.run("CREATE TABLE global_stats (" + columns + ")");
    Statement insert =
        database_.prepare("INSERT INTO global_stats VALUES (" + places(3 + metrics_.size()) + ")");
    const std::int64_t first = flattens_ || !steps_ ? 0 : steps_->first;
    const std::int64_t last = flattens_ ? std::max<std::int64_t>(total_ - 1, 0)
                              : steps_  ? steps_->second
                                        : 0;
    insert.integer(first).integer(last).integer(max_rank_);
    std::vector<std::string> lists;
    lists.reserve(metrics_.size());
    for (const std::string_view type : kMetrics) {
      if (!metrics_.contains(type)) continue;
      std::string& list = lists.emplace_back();
      for (const std::string& name : metric_stats(source_, type, given_).names) {
        list += (list.empty() ? "" : ",") + name;
      }
      insert.text(list);
    }
    insert.run();
    database_.run("COMMIT");
    if (view_.left_out() + without_metric_ > 0) {
      account.remark(std::to_string(view_.left_out() + without_metric_) +
                     " rows have no place in msprobe's table trend_data (kinds that it does not "
                     "know, attempts that were not taken)");
    }
  }

 private:
  struct Hand final : RowWriter {
    explicit Hand(TrendTarget& target) : target(target) {}
    void take(const TableRow& row) override { target.view_.add(row); }
    void end() override { target.view_.end(); }
    TrendTarget& target;
  };

  // Micro steps count on: the first of a step comes after the last of the step before.
  void number_micro_steps(const TargetPlace& place) {
    std::map<std::int64_t, std::int64_t> micro_steps;
    MsprobeView counting(place.source, place.stats, [&](const MsprobeRow& row) {
      if (!is_trend_metric(row.type)) return;
      std::int64_t& most = micro_steps[row.step];
      most = std::max<std::int64_t>(most, row.micro_step + 1);
    });
    RowAccount unused;
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < place.source.parts().size(); ++i) {
      place.source.read(
          i,
          [&](const TableRow& row) {
            if ((++rows & 0x3FF) == 0 && place.options.cancelled && place.options.cancelled()) {
              throw Cancelled();
            }
            counting.add(row);
          },
          unused);
      counting.end();
    }
    for (const auto& [step, count] : micro_steps) {
      first_[step] = total_;
      total_ += count;
    }
  }

  static bool is_trend_metric(std::string_view type) {
    const auto end = kMetrics.begin() + kTrendMetrics;
    return std::find(kMetrics.begin(), end, type) != end;
  }

  void make_trend_table() {
    std::set<std::string> all;
    for (std::size_t i = 0; i < kTrendMetrics; ++i) {
      for (const std::string& name : metric_stats(source_, kMetrics[i], given_).names) {
        all.insert(name);
      }
    }
    const std::vector<std::string> view = MsprobeView::stats(source_, given_);
    std::vector<std::string> names;
    for (const std::string_view name : kStats) {
      if (!all.contains(std::string(name))) continue;
      names.emplace_back(name);
      places_.push_back(
          static_cast<std::size_t>(std::find(view.begin(), view.end(), name) - view.begin()));
    }
    database_.run(
        "CREATE TABLE trend_data (rank INTEGER NOT NULL, step INTEGER NOT NULL, target_id "
        "INTEGER NOT NULL, metric_id INTEGER NOT NULL" +
        real_columns(names) +
        ", PRIMARY KEY (rank, step, target_id, metric_id), FOREIGN KEY (target_id) "
        "REFERENCES monitoring_targets(target_id), FOREIGN KEY (metric_id) REFERENCES "
        "monitoring_metrics(metric_id)) WITHOUT ROWID");
    row_.emplace(
        database_.prepare("INSERT INTO trend_data VALUES (" + places(4 + names.size()) + ")"));
  }

  std::int64_t metric(std::string_view type) {
    const auto known = metrics_.find(type);
    if (known != metrics_.end()) return known->second;
    const auto id = static_cast<std::int64_t>(metrics_.size()) + 1;
    database_.prepare("INSERT INTO monitoring_metrics VALUES (?,?)").integer(id).text(type).run();
    metrics_.emplace(std::string(type), id);
    return id;
  }

  void add_tags(std::string_view name, std::int64_t metric, std::int64_t target) {
    if (!tagged_.emplace(metric, target).second) return;
    for (const auto& [tag, category] : tags_of(name)) {
      const auto [known, is_new] = tags_.try_emplace({tag, std::string(category), metric},
                                                     static_cast<std::int64_t>(tags_.size()) + 1);
      if (is_new) tag_->integer(known->second).text(tag).text(category).integer(metric).run();
      mapping_->integer(known->second).integer(target).run();
    }
  }

  void add(const MsprobeRow& row) {
    if (!is_trend_metric(row.type)) {
      ++without_metric_;
      return;
    }
    const std::int64_t of = metric(row.type);
    const std::int64_t target =
        targets_->number(row.name, row.chunk, flattens_ ? 0 : row.micro_step);
    add_tags(row.name, of, target);
    max_rank_ = std::max<std::int64_t>(max_rank_, row.rank);
    if (!steps_) steps_.emplace(row.step, row.step);
    steps_->first = std::min(steps_->first, row.step);
    steps_->second = std::max(steps_->second, row.step);
    const std::int64_t step = flattens_ ? first_[row.step] + row.micro_step : row.step;
    row_->integer(row.rank).integer(step).integer(target).integer(of);
    for (const std::size_t at : places_) {
      const bool is_absent = (row.absent >> at & 1) != 0;
      bind(*row_, is_absent ? 0.0 : clamped(row.values[at]), is_absent);
    }
    row_->run();
  }

  Source& source_;
  const std::vector<std::string>& given_;
  const bool flattens_;
  Database database_;
  std::optional<Targets> targets_;
  std::optional<Statement> row_;
  std::optional<Statement> tag_;
  std::optional<Statement> mapping_;
  std::map<std::string, std::int64_t, std::less<>> metrics_;
  std::map<std::tuple<std::string, std::string, std::int64_t>, std::int64_t> tags_;
  std::set<std::pair<std::int64_t, std::int64_t>> tagged_;
  std::vector<std::size_t> places_;
  std::map<std::int64_t, std::int64_t> first_;  // global step of micro step 0, by step
  std::int64_t total_ = 0;
  std::int64_t without_metric_ = 0;
  std::optional<std::pair<std::int64_t, std::int64_t>> steps_;
  std::int64_t max_rank_ = 0;
  MsprobeView view_;
};

}  // namespace

std::unique_ptr<Target> make_msprobe_db_target(const TargetPlace& place) {
  return std::make_unique<MsprobeDbTarget>(place);
}

std::unique_ptr<Target> make_msprobe_trend_target(const TargetPlace& place) {
  return std::make_unique<TrendTarget>(place);
}

}  // namespace trainmon
