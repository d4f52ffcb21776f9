// Databases of ours: RUN/rank_*/restart_*/stats.db of the sink, or one that a conversion wrote.
#include <sqlite3.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <unordered_map>

#include "base/cancelled.h"
#include "base/text.h"
#include "read/restarts.h"
#include "read/run_layout.h"
#include "read/sqlite_answer.h"
#include "sinks/run_tables.h"
#include "sources/rank_record.h"
#include "sources/row_members.h"
#include "sources/seen_rows.h"
#include "sources/source.h"
#include "sources/sqlite_facts.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

std::string column_name(std::string_view name) {
  return "\"" + std::string(name) + "\"";
}

class SqliteSource final : public Source {
 public:
  SqliteSource(const SourceOptions& options, RowAccount& account)
      : filter_(options.select), facts_(filter_) {
    std::error_code unknown;
    std::vector<std::string> incomplete;
    const bool stands_alone = !fs::is_directory(options.from, unknown);
    if (stands_alone) {
      add_file(options.from, 0, 0);
    } else {
      const std::vector<RankDirectory> places = rank_directories(options.from);
      for (std::size_t i = 0; i < places.size(); ++i) {
        const RankDirectory& place = places[i];
        if (!filter_.takes_rank(place.rank)) continue;
        const RankRecord record = read_rank_record(places, i, "sqlite", incomplete);
        restarts_.set_world_size(place.restart, record.facts.world_size);
        for (const fs::path& file : files_named(place.path, "stats", ".db")) {
          add_file(file, place.rank, place.restart);
          if (file.filename() == "stats.db") files_.back().claimed = rows_claimed(record, "sqlite");
        }
        account.damage(record.damage);
      }
      if (!options.select.all_restarts) note_starts_without(places);
    }
    if (files_.empty()) {
      throw std::runtime_error("no file stats*.db in " + printable(options.from.native()));
    }
    for (auto at = files_.begin(); at != files_.end();) {
      try {
        look_at(*at, account);
        ++at;
      } catch (const std::runtime_error& error) {
        if (files_.size() == 1) throw;
        account.reject({at->path, 0, 0, error.what()});
        parts_.erase(parts_.begin() + (at - files_.begin()));
        at = files_.erase(at);
      }
    }
    stats_ = options.stats.empty() ? all_stats_ : options.stats;
    for (const std::string& name : stats_) {
      is_count_.push_back(is_count(name));
      if (std::find(all_stats_.begin(), all_stats_.end(), name) != all_stats_.end()) continue;
      throw std::invalid_argument("'" + printable(name) + "' is no statistic of these databases");
    }
    filter_.check_kinds(kinds_);
    if (!options.select.all_restarts) {
      for (const FileOf& file : files_) {
        try {
          note_steps(file);
        } catch (const std::runtime_error&) {  // said when its rows are read
        }
      }
    }
    facts_.finish(options.select, restarts_);
    if (stands_alone) add_gaps(facts_.rows().gaps, incomplete);
    facts_.set_incomplete(std::move(incomplete));
  }

  const std::vector<Part>& parts() const override { return parts_; }
  const std::vector<std::string>& stats() const override { return stats_; }
  const RunRows* facts() const override { return &facts_.rows(); }
  std::vector<std::string> kinds() const override { return kinds_; }
  void read_payloads(const UsePayload& use, RowAccount& account) override {
    for (const FileOf& file : files_) {
      const SqliteConnection database = open_database(file.path);
      facts_.read_payloads(database.get(), file.path, restarts_, use, account);
    }
  }

  void read(std::size_t part, const Take& take, RowAccount& account) override {
    FileOf& file = files_[part];
    std::int64_t rows = 0, superseded = 0;
    try {
      read_rows(file, take, rows, superseded, parts_[part].bytes, account);
    } catch (const Cancelled&) {
      throw;
    } catch (const std::runtime_error& error) {
      account.reject({file.path, 0, 0, error.what()});
    }
    account.read(rows);
    account.supersede(superseded);
  }

 private:
  struct FileOf {
    fs::path path;
    int rank = 0;
    int restart = 0;
    Timeline timeline;
    std::deque<Series> series;
    std::unordered_map<std::string, const Series*> by_key;
    KeptShapes shapes;
    SeenRows seen;
    std::int64_t claimed = 0;  // rows that health.json says are in it
  };

  void add_file(const fs::path& path, int rank, int restart) {
    std::error_code unknown;
    parts_.push_back({rank, "", false, static_cast<std::int64_t>(fs::file_size(path, unknown))});
    FileOf& file = files_.emplace_back();
    file.path = path;
    file.rank = rank;
    file.restart = restart;
  }

  void note_starts_without(const std::vector<RankDirectory>& places) {
    const auto is_asked_for = [&](int rank) { return filter_.takes_rank(rank); };
    for (const RankDirectory& place : starts_without(places, is_asked_for)) {
      for (const fs::path& file : files_named(place.path, "stats", ".db")) {
        try {
          const SqliteConnection database = open_database(file);
          check(database.get(), file);
          FileOf other;
          other.path = file;
          other.rank = place.rank;
          other.restart = place.restart;
          RowAccount said_where_it_is_asked_for;
          other.timeline = timeline_of(database.get(), file, said_where_it_is_asked_for);
          note_steps(other);
          std::vector<Damage> nor_its_facts;
          restarts_.set_world_size(place.restart, read_run_json(place, nor_its_facts).world_size);
        } catch (const std::runtime_error&) {  // of a rank that was not asked for
        }
      }
    }
  }

  // Those with an outcome, and those after them that have rows or scalars.
  void note_steps(const FileOf& file) {
    restarts_.add(file.rank, file.restart, file.timeline);
    if (file.restart == 0) return;  // there is none before
    const SqliteConnection database = open_database(file.path);
    SqliteAnswer open(database.get(),
                      "SELECT DISTINCT s.optimizer, r.window, r.step FROM rows r JOIN series s ON "
                      "s.id = r.series UNION SELECT optimizer, window, step FROM scalars",
                      file.path);
    while (open.next()) {
      const auto optimizer = static_cast<std::int32_t>(open.integer(0));
      std::int64_t step = open.integer(2);
      if (file.timeline.newest_window(optimizer)) {
        step = file.timeline.at(optimizer, open.integer(1)).step;
      }
      restarts_.add(file.rank, optimizer, step, file.restart);
    }
  }

  static Timeline timeline_of(sqlite3* database, const fs::path& file, RowAccount& account) {
    RecordBatch batch;
    SqliteAnswer outcomes(
        database, "SELECT optimizer, window, step, attempt, fate, loss_scale FROM outcomes", file);
    while (outcomes.next()) {
      Outcome outcome;
      SqliteMembers cells(outcomes, 0);
      cells.read_all(outcome.optimizer, outcome.window, outcome.step, outcome.attempt, outcome.fate,
                     outcome.loss_scale);
      if (cells.fault().empty()) {
        batch.outcomes.push_back(outcome);
      } else {
        account.reject(
            {file, 0, 0,
             "outcome of window " + std::to_string(outcome.window) + ": " + cells.fault()});
      }
    }
    Timeline timeline;
    timeline.add(batch);
    return timeline;
  }

  // The one number of an answer.
  static std::int64_t number(sqlite3* database, const fs::path& file, const char* sql) {
    SqliteAnswer answer(database, sql, file);
    return answer.next() ? answer.integer(0) : 0;
  }

  // Throws where it is not a sound database of ours: of a damaged one no row can be believed.
  static void check(sqlite3* database, const fs::path& file) {
    const std::string name = printable(file.native()) + ": ";
    if (number(database, file, "PRAGMA application_id") != kSqliteApplicationId) {
      throw std::runtime_error(name + "no database of trainmon");
    }
    if (const std::int64_t version = number(database, file, "PRAGMA user_version");
        version != kSqliteFormatVersion) {
      throw std::runtime_error(name + "schema version " + std::to_string(version) +
                               ", this reader knows " + std::to_string(kSqliteFormatVersion));
    }
    SqliteAnswer answer(database, "PRAGMA quick_check(1)", file);
    if (answer.next() && answer.text(0) != "ok") {
      throw std::runtime_error(name + "damaged: " + printable(answer.text(0)));
    }
  }

  void look_at(FileOf& file, RowAccount& account) {
    const SqliteConnection database = open_database(file.path);
    check(database.get(), file.path);
    {
      SqliteAnswer columns(database.get(), "SELECT * FROM stats LIMIT 0", file.path);
      for (int i = 0; i < columns.columns(); ++i) {
        const std::string name(columns.name(i));
        if (is_in_wide_row(name) || name.find('"') != std::string::npos) continue;
        if (all_stats_.size() >= 64) break;
        if (std::find(all_stats_.begin(), all_stats_.end(), name) == all_stats_.end()) {
          all_stats_.push_back(name);
        }
      }
    }
    file.timeline = timeline_of(database.get(), file.path, account);
    SqliteAnswer kinds(database.get(), "SELECT DISTINCT kind FROM series", file.path);
    while (kinds.next()) {
      std::string kind(kinds.text(0));
      if (std::find(kinds_.begin(), kinds_.end(), kind) == kinds_.end()) {
        kinds_.push_back(std::move(kind));
      }
    }
    facts_.add(database.get(), file.path, account);
  }

  void read_rows(FileOf& file, const Take& take, std::int64_t& rows, std::int64_t& superseded,
                 std::int64_t bytes, RowAccount& account) {
    const SqliteConnection database = open_database(file.path);
    SqliteAnswer last(database.get(), "SELECT max(rowid) FROM rows", file.path);
    const std::int64_t all = last.next() ? std::max<std::int64_t>(last.integer(0), 1) : 1;
    std::int64_t seen = 0, repeated = 0;
    constexpr std::int64_t kOften = 8192;
    std::vector<bool> has(stats_.size());
    SqliteAnswer answer(database.get(),
                        "SELECT " + columns_of(file, database.get(), has) + " FROM stats",
                        file.path);
    std::vector<double> values(stats_.size());
    while (answer.next()) {
      if (++seen % kOften == 0) {
        account.advance(static_cast<std::int64_t>(static_cast<double>(bytes) * kOften /
                                                  static_cast<double>(all)));
      }
      TableRow row;
      SqliteMembers members(answer, 0);
      for_each_field_of<RowPlace>(
          kWideRow, [&](const auto& field) { members.read(row.*field.member, file.shapes); });
      const int first_series = members.at();
      for_each_field_of<Series>(kWideRow, [&]<typename T>(const Field<Series, T>&) {
        T number{};
        if constexpr (std::integral<T>) return members.read(number, file.shapes);
        members.skip();
      });
      for (std::size_t i = 0; i < values.size(); ++i) {
        is_count_[i] ? members.read_count(values[i], file.shapes)
                     : members.read(values[i], file.shapes);
      }
      std::string fault = members.fault();
      row.series = series_of(file, answer, first_series, fault);
      if (!fault.empty()) {
        ++rows;
        account.reject(
            {file.path, 0, 1,
             "row with seq " + std::to_string(static_cast<std::int64_t>(row.seq)) + ": " + fault});
        continue;
      }
      if (!filter_.takes_rank(row.rank) || !filter_.takes(*row.series) ||
          !filter_.takes_step(row.step)) {
        continue;
      }
      ++rows;
      if (!file.seen.add(row.restart, row.rank, row.seq)) {
        ++repeated;
        account.reject(
            {file.path, 0, 1, "row with seq " + std::to_string(row.seq) + " was there before"});
        continue;
      }
      if (!restarts_.is_newest(row.rank, row.series->optimizer, row.step, row.restart)) {
        ++superseded;
        continue;
      }
      // NULL, the one NaN of SQLite, is NaN, but where nothing was measured at all.
      const bool is_unknown = (row.flags & flag::kNotReady) != 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (std::isnan(values[i]) && (is_unknown || !has[i])) row.absent |= std::uint64_t{1} << i;
      }
      row.values = values;
      take(row);
    }
    // The view has no row of a series that is not there.
    const std::int64_t lost = number(database.get(), file.path,
                                     "SELECT count(*) FROM rows WHERE NOT EXISTS (SELECT 1 FROM "
                                     "series WHERE series.id = rows.series)");
    if (lost > 0) {
      rows += lost;
      account.reject({file.path, 0, lost, "rows whose series is not in the table series"});
    }
    // Payloads count as rows; a database that was deleted took rows with it.
    const std::int64_t held = number(database.get(), file.path,
                                     "SELECT (SELECT count(*) FROM rows) + (SELECT count(*) FROM "
                                     "payloads) + (SELECT coalesce(sum(rows), 0) FROM gaps WHERE "
                                     "reason = 'deleted')");
    hold_against_health(file.path, "stats.db holds", file.claimed, held - repeated, account);
  }

  // What is asked of the view stats: the fields of the row, of its series, then the statistics.
  // `has` tells whether the statistics are there. What is not there is NULL.
  std::string columns_of(const FileOf& file, sqlite3* database, std::vector<bool>& has) const {
    SqliteAnswer all(database, "SELECT * FROM stats LIMIT 0", file.path);
    const auto is_there = [&](std::string_view name) {
      for (int i = 0; i < all.columns(); ++i) {
        if (all.name(i) == name) return true;
      }
      return false;
    };
    std::string text;
    const auto add = [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
      // Databases of earlier versions lack it.
      const bool is_absent = kMayBeUnknown<T> && !is_there(field.name);
      text += (text.empty() ? "" : ", ") + (is_absent ? "NULL" : std::string(field.name));
    };
    for_each_field_of<RowPlace>(kWideRow, add);
    for_each_field_of<Series>(kWideRow, add);
    for (std::size_t i = 0; i < stats_.size(); ++i) {
      has[i] = is_there(stats_[i]);
      text += ", " + (has[i] ? column_name(stats_[i]) : "NULL");
    }
    return text;
  }

  static const Series* series_of(FileOf& file, const SqliteAnswer& answer, int first,
                                 std::string& fault) {
    std::string key;
    int at = first;
    for_each_field_of<Series>(kWideRow, [&](const auto&) {
      key += answer.text(at++);
      key += '\x1f';
    });
    const auto [known, is_new] = file.by_key.try_emplace(std::move(key), nullptr);
    if (!is_new) return known->second;
    Series series = series_from(answer, first, fault);
    if (!fault.empty()) {
      file.by_key.erase(known);
      return nullptr;
    }
    file.series.push_back(std::move(series));
    return known->second = &file.series.back();
  }

  const RowFilter filter_;
  std::vector<Part> parts_;
  std::deque<FileOf> files_;  // of parts_, same order
  Restarts restarts_;
  std::vector<std::string> all_stats_;
  std::vector<std::string> stats_;
  std::vector<bool> is_count_;  // of stats_, same order
  std::vector<std::string> kinds_;
  SqliteFacts facts_;
};

}  // namespace

std::unique_ptr<Source> open_sqlite_source(const SourceOptions& options, RowAccount& account) {
  return std::make_unique<SqliteSource>(options, account);
}

}  // namespace trainmon
