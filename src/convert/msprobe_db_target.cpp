// msprobe's monitor_metrics.db as its csv2db makes it: a table per type and range of steps.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "convert/msprobe_tables.h"
#include "convert/msprobe_view.h"
#include "convert/target.h"
#include "sinks/sqlite_file.h"

namespace trainmon {
namespace {

using namespace msprobe_tables;

class MsprobeDbTarget final : public Target {
 public:
  explicit MsprobeDbTarget(const TargetPlace& place)
      : source_(place.source),
        stats_(place.stats),
        partition_(place.options.step_partition),
        database_(place.path),
        view_(
            place.source, place.stats, [](std::string_view) { return true; },
            [this](const MsprobeRow& row) { add(row); }) {
    database_.begin_unseen();
    database_.run(Targets::kTable);
    database_.run(kMetricsTable);
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
    if (steps_) make_tables(account);
    Statement insert = database_.prepare("INSERT INTO global_stats VALUES (?,?)");
    const auto fact = [&](std::string_view name, std::int64_t value) {
      insert.text(name).integer(value).run();
    };
    fact("max_rank", max_rank_);
    fact("min_step", steps_ ? steps_->first : 0);
    fact("max_step", steps_ ? steps_->second : 0);
    fact("step_partition_size", partition_);
    database_.run("COMMIT");
    view_.tell(account, "tables");
  }

 private:
  // Its readers look for one of every part of the steps, also where no row is. The name of a
  // damaged file may claim any steps.
  void make_tables(RowAccount& account) {
    constexpr std::int64_t kMost = 10'000;  // of one metric
    const std::int64_t first = steps_->first / partition_, last = steps_->second / partition_;
    if (last / 2 - first / 2 > kMost / 2) {
      account.remark("steps " + std::to_string(steps_->first) + " to " +
                     std::to_string(steps_->second) +
                     " are too many for msprobe's tables: only those with rows are there");
      return;
    }
    for (auto& [type, metric] : metrics_) {
      for (std::int64_t part = first; part <= last; ++part) table(metric, part);
    }
  }

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

  // A damaged log may have a row twice: the last stays.
  Statement& table(Metric& metric, std::int64_t partition) {
    const auto known = metric.tables.find(partition);
    if (known != metric.tables.end()) return known->second;
    constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
    const std::int64_t from = partition * partition_;
    const std::string first = std::to_string(from);
    const std::string last =
        std::to_string(std::min(from, kLast - partition_ + 1) + partition_ - 1);
    const std::string name =
        "\"metric_" + std::to_string(metric.id) + "_step_" + first + "_" + last + "\"";
    database_.run("CREATE TABLE " + name +
                  " (rank INTEGER NOT NULL, step INTEGER NOT NULL CHECK(step BETWEEN " + first +
                  " AND " + last + "), target_id INTEGER NOT NULL" +
                  real_columns(metric.stats.names) +
                  ", PRIMARY KEY (rank, step, target_id), FOREIGN KEY (target_id) REFERENCES "
                  "monitoring_targets(target_id)) WITHOUT ROWID");
    return metric.tables
        .emplace(partition, database_.prepare("INSERT OR REPLACE INTO " + name + " VALUES (" +
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

}  // namespace

std::unique_ptr<Target> make_msprobe_db_target(const TargetPlace& place) {
  return std::make_unique<MsprobeDbTarget>(place);
}

}  // namespace trainmon
