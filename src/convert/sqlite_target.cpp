// The target sqlite: the tables that the sink of this name writes, all ranks and restarts in one.
#include <map>
#include <tuple>
#include <unordered_map>

#include "convert/target.h"
#include "sinks/run_tables.h"

namespace trainmon {
namespace {

class SqliteTarget final : public Target {
 public:
  explicit SqliteTarget(const TargetPlace& place)
      : source_(place.source), database_(place.path), tables_(database_, place.stats) {
    database_.begin_unseen();
    tables_.add_fact("converted_from", place.options.from.native());
  }

  std::unique_ptr<RowWriter> writer(std::size_t) override { return std::make_unique<Rows>(*this); }

  void finish(RowAccount& account) override {
    source_.read_payloads(
        [&](const Series& series, const ReadPayload& p) {
          Outcome place;
          place.step = p.step;
          place.attempt = p.attempt;
          tables_.add_payload({p.restart, p.rank}, id_of(series), place, p.payload.key.accum,
                              p.payload);
        },
        account);
    if (const RunRows* facts = source_.facts()) {
      for (const ReadScalar& s : facts->scalars) {
        tables_.add_scalar({s.restart, s.rank}, 0, s.step, {s.name, -1, 0, s.value});
      }
      for (const ReadDeclared& d : facts->declared) tables_.add_declared(d);
      // Of a window without rows here the view would guess the step, which the source knows.
      database_.run(
          "UPDATE declared_values SET window = -1 WHERE NOT EXISTS (SELECT 1 FROM outcomes o WHERE "
          "o.restart = declared_values.restart AND o.rank = declared_values.rank AND "
          "o.optimizer = declared_values.optimizer AND o.window = declared_values.window)");
      for (const ReadAlert& a : facts->alerts) {
        tables_.add_alert({a.restart, a.rank}, id_of(facts->series[a.alert.key.series]), a.alert);
      }
      for (const ReadGap& g : facts->gaps) tables_.add_gap({g.restart, g.rank}, g.gap);
    }
    database_.run("COMMIT");
  }

 private:
  class Rows final : public RowWriter {
   public:
    explicit Rows(SqliteTarget& target) : target_(target) {}
    void take(const TableRow& row) override { target_.add(row); }
    void end() override {}

   private:
    SqliteTarget& target_;
  };

  void add(const TableRow& row) {
    const std::tuple window(row.restart, row.rank, row.series->optimizer, row.window);
    if (window != last_window_) {
      Outcome outcome;
      outcome.optimizer = row.series->optimizer;
      outcome.window = row.window;
      outcome.step = row.step;
      outcome.attempt = row.attempt;
      outcome.fate = row.fate;
      outcome.loss_scale = row.loss_scale;
      // Rows of files without windows (msprobe's) have a step alone.
      if (!source_.is_msprobe()) tables_.add_outcome({row.restart, row.rank}, outcome);
      last_window_ = window;
    }
    TableRow placed = row;
    if (source_.is_msprobe()) placed.window = -1;
    tables_.add_row(id_of(*row.series), placed);
  }

  // Equal series of different parts are one.
  std::int64_t id_of(const Series& series) {
    const auto known = ids_.find(&series);
    if (known != ids_.end()) return known->second;
    const std::tuple place(series.kind, series.chunk, series.name, series.element,
                           series.optimizer);
    std::int64_t id = 0;
    const auto [begin, end] = equal_.equal_range(place);
    for (auto at = begin; at != end; ++at) {
      if (*at->second.second == series) id = at->second.first;
    }
    if (id == 0) {
      id = static_cast<std::int64_t>(equal_.size()) + 1;
      equal_.emplace(place, std::pair(id, &series));
      tables_.add_series(id, series);
    }
    ids_.emplace(&series, id);
    return id;
  }

  Source& source_;
  Database database_;
  RunTables tables_;
  std::unordered_map<const Series*, std::int64_t> ids_;
  std::multimap<std::tuple<std::string, std::int32_t, std::string, std::string, std::int32_t>,
                std::pair<std::int64_t, const Series*>>
      equal_;
  std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int64_t> last_window_{-2, -2, -2, -2};
};

}  // namespace

std::unique_ptr<Target> make_sqlite_target(const TargetPlace& place) {
  return std::make_unique<SqliteTarget>(place);
}

}  // namespace trainmon
