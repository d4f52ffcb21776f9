// msprobe's monitor_data.trend.db as its data2db makes it: the one table trend_data.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/cancelled.h"
#include "convert/msprobe_tables.h"
#include "convert/msprobe_view.h"
#include "convert/target.h"
#include "sinks/sqlite_file.h"

namespace trainmon {
namespace {

using namespace msprobe_tables;

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
        view_(place.source, place.stats, is_trend_metric,
              [this](const MsprobeRow& row) { add(row); }) {
    if (flattens_) number_micro_steps(place);
    database_.begin_unseen();
    database_.run(Targets::kTable);
    database_.run(kMetricsTable);
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
    for (const std::string_view type : kMsprobeMetrics) {
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
    for (const std::string_view type : kMsprobeMetrics) {
      if (!metrics_.contains(type)) continue;
      std::string& list = lists.emplace_back();
      for (const std::string& name : metric_stats(source_, type, given_).names) {
        list += (list.empty() ? "" : ",") + name;
      }
      insert.text(list);
    }
    insert.run();
    database_.run("COMMIT");
    view_.tell(account, "table trend_data");
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
    MsprobeView counting(place.source, place.stats, is_trend_metric, [&](const MsprobeRow& row) {
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
    const auto end = kMsprobeMetrics.begin() + kTrendMetrics;
    return std::find(kMsprobeMetrics.begin(), end, type) != end;
  }

  void make_trend_table() {
    std::set<std::string> all;
    for (std::size_t i = 0; i < kTrendMetrics; ++i) {
      for (const std::string& name : metric_stats(source_, kMsprobeMetrics[i], given_).names) {
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
    row_.emplace(database_.prepare("INSERT OR REPLACE INTO trend_data VALUES (" +
                                   places(4 + names.size()) + ")"));
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
  std::optional<std::pair<std::int64_t, std::int64_t>> steps_;
  std::int64_t max_rank_ = 0;
  MsprobeView view_;
};

}  // namespace

std::unique_ptr<Target> make_msprobe_trend_target(const TargetPlace& place) {
  return std::make_unique<TrendTarget>(place);
}

}  // namespace trainmon
