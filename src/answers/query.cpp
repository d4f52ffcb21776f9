// One statement of SQL, over the logs of a run or over a database.
#include "answers/query.h"

#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <tuple>

#include "answers/query_tables.h"
#include "base/text.h"
#include "read/run_layout.h"
#include "read/sqlite_answer.h"
#include "read/sqlite_bounds.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

SqlValue value_of(sqlite3_stmt* statement, int column) {
  switch (sqlite3_column_type(statement, column)) {
    case SQLITE_INTEGER:
      return std::int64_t{sqlite3_column_int64(statement, column)};
    case SQLITE_FLOAT:
      return sqlite3_column_double(statement, column);
    case SQLITE_NULL:
      return {};
    default: {
      const void* bytes = sqlite3_column_blob(statement, column);
      const auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement, column));
      if (size == 0) return std::string();
      return std::string(static_cast<const char*>(bytes), size);
    }
  }
}

// Interrupts a statement that takes longer than it may.
class TimeLimit {
 public:
  TimeLimit(sqlite3* database, double seconds) : database_(database), seconds_(seconds) {
    constexpr int kInstructions = 10'000;  // between two looks at the clock
    if (seconds > 0.0) sqlite3_progress_handler(database, kInstructions, is_over, this);
  }
  ~TimeLimit() { sqlite3_progress_handler(database_, 0, nullptr, nullptr); }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  static int is_over(void* self) {
    const auto& limit = *static_cast<const TimeLimit*>(self);
    const std::chrono::duration<double> spent = Clock::now() - limit.begin_;
    return spent.count() > limit.seconds_ ? 1 : 0;
  }
  sqlite3* const database_;
  const double seconds_;
  const Clock::time_point begin_ = Clock::now();
};

[[noreturn]] void refuse(sqlite3* database, const std::string& sql, int offset,
                         const std::string& function = {}) {
  std::string text = "SQL: " + std::string(sqlite3_errmsg(database));
  if (offset >= 0 && static_cast<std::size_t>(offset) < sql.size()) {
    text += ", at character " + std::to_string(offset + 1) + ": " +
            sql.substr(static_cast<std::size_t>(offset), 30);
  }
  const int code = sqlite3_errcode(database);
  if (!function.empty()) {
    text += "; " + printable(function) + " is not among the functions of SQLite that only compute";
  } else if (code == SQLITE_AUTH) {
    text += "; only SELECT is";
  } else if (code == SQLITE_INTERRUPT) {
    text += ": it took longer than it may; --timeout gives it more seconds";
  }
  throw std::invalid_argument(text);
}

int offset_of_error([[maybe_unused]] sqlite3* database) {
#if SQLITE_VERSION_NUMBER >= 3038000
  return sqlite3_error_offset(database);
#else
  return -1;
#endif
}

void carry_out(sqlite3* database, const std::string& sql, const QueryOutput& output,
               const QueryOptions& options) {
  std::string refused;
  allow_reading_only(database, refused);
  const TimeLimit limit(database, options.timeout_seconds);
  const char* rest = nullptr;
  sqlite3_stmt* made = nullptr;
  const int prepared = sqlite3_prepare_v2(database, sql.c_str(), -1, &made, &rest);
  const std::unique_ptr<sqlite3_stmt, CloseSqlite> statement(made);
  if (prepared != SQLITE_OK) refuse(database, sql, offset_of_error(database), refused);
  if (made == nullptr) throw std::invalid_argument("SQL: there is no statement in it");
  const std::string_view more = rest;
  if (more.find_first_not_of(" \t\r\n;") != std::string_view::npos) {
    throw std::invalid_argument("SQL: one statement only, not also: " + std::string(more));
  }
  std::vector<std::string> names;
  for (int i = 0; i < sqlite3_column_count(made); ++i) {
    names.emplace_back(sqlite3_column_name(made, i));
  }
  output.columns(names);
  std::vector<SqlValue> cells(names.size());
  for (;;) {
    const int code = sqlite3_step(made);
    if (code == SQLITE_DONE) return;
    if (code != SQLITE_ROW) refuse(database, sql, -1);
    for (std::size_t i = 0; i < cells.size(); ++i) cells[i] = value_of(made, static_cast<int>(i));
    output.row(cells);
  }
}

bool is_database(const fs::path& path) {
  std::array<char, 16> head{};
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), head.size());
  return std::string_view(head.data(), head.size()) == std::string_view("SQLite format 3\0", 16);
}

// The databases of a run without logs; empty where there are logs.
std::vector<fs::path> databases_alone(const fs::path& run) {
  std::vector<fs::path> databases;
  for (const RankDirectory& place : rank_directories(run)) {
    if (place.error) continue;
    for (const auto& entry : fs::directory_iterator(place.path)) {
      if (entry.path().extension() == ".tmlog") return {};
      if (entry.path().filename() == "stats.db") databases.push_back(entry.path());
    }
  }
  return databases;
}

SqliteConnection opened(const fs::path& path) {
  sqlite3* made = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &made, SQLITE_OPEN_READONLY, nullptr);
  SqliteConnection database(made);
  if (code != SQLITE_OK) {
    throw std::runtime_error("cannot read " + path.string() + ": " + sqlite3_errstr(code));
  }
  sqlite3_busy_timeout(made, 5000);
  distrust(made);
  return database;
}

}  // namespace

QueryAccount query(const fs::path& run, const std::string& sql, const QueryOutput& output,
                   const QueryOptions& options) {
  if (fs::is_regular_file(run)) {
    if (!is_database(run)) throw std::runtime_error(run.string() + " is no SQLite database");
    carry_out(opened(run).get(), sql, output, options);
    return {};
  }
  const std::vector<fs::path> databases = databases_alone(run);
  if (databases.size() > 1) {
    throw std::runtime_error(run.string() + " has no log, but a database per rank and restart: " +
                             "ask one of them, as " + databases.front().string());
  }
  if (!databases.empty()) {
    carry_out(opened(databases.front()).get(), sql, output, options);
    return {};
  }
  QueriedRun source(run, options);
  sqlite3* made = nullptr;
  const int code = sqlite3_open_v2(":memory:", &made, SQLITE_OPEN_READWRITE, nullptr);
  const SqliteConnection database(made);
  if (code != SQLITE_OK) throw std::bad_alloc();
  add_query_tables(made, source);
  carry_out(made, sql, output, options);
  const RunRows& facts = source.facts();
  QueryAccount account{facts.damage, facts.missing, facts.expired, facts.incomplete};
  std::ranges::copy(facts.earlier, std::back_inserter(account.earlier));
  for (const Damage& found : source.damage()) {
    const auto is_same = [&](const Damage& d) {
      return std::tie(d.file, d.offset, d.what) == std::tie(found.file, found.offset, found.what);
    };
    if (std::ranges::none_of(account.damage, is_same)) account.damage.push_back(found);
  }
  return account;
}

}  // namespace trainmon
