// Reading databases, statement by statement.
#pragma once

#include <sqlite3.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/text.h"
#include "read/sqlite_bounds.h"

namespace trainmon {

struct CloseSqlite {
  void operator()(sqlite3* database) const noexcept { sqlite3_close_v2(database); }
  void operator()(sqlite3_stmt* statement) const noexcept { sqlite3_finalize(statement); }
};
using SqliteConnection = std::unique_ptr<sqlite3, CloseSqlite>;

[[noreturn]] inline void throw_database_error(sqlite3* database,
                                              const std::filesystem::path& file) {
  throw std::runtime_error(printable(file.native()) + ": " + sqlite3_errmsg(database));
}

inline SqliteConnection open_database(const std::filesystem::path& file) {
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(file.c_str(), &raw, SQLITE_OPEN_READONLY, nullptr);
  SqliteConnection connection(raw);
  if (code != SQLITE_OK) throw_database_error(raw, file);
  sqlite3_busy_timeout(raw, 5000);
  distrust(raw);
  return connection;
}

// One SELECT, row by row.
class SqliteAnswer {
 public:
  SqliteAnswer(sqlite3* database, const std::string& sql, const std::filesystem::path& file)
      : database_(database), file_(file) {
    sqlite3_stmt* raw = nullptr;
    const int code = sqlite3_prepare_v2(database, sql.c_str(), -1, &raw, nullptr);
    statement_.reset(raw);
    if (code != SQLITE_OK) throw_database_error(database_, file_);
  }
  bool next() {
    const int code = sqlite3_step(statement_.get());
    if (code != SQLITE_ROW && code != SQLITE_DONE) throw_database_error(database_, file_);
    return code == SQLITE_ROW;
  }
  bool is_integer(int at) const { return type(at) == SQLITE_INTEGER; }
  // SQLITE_INTEGER, SQLITE_NULL, ...
  int type(int at) const { return sqlite3_column_type(statement_.get(), at); }
  std::int64_t integer(int at) const { return sqlite3_column_int64(statement_.get(), at); }
  double real(int at) const { return sqlite3_column_double(statement_.get(), at); }
  bool is_null(int at) const { return type(at) == SQLITE_NULL; }
  // Valid until the next row.
  std::string_view text(int at) const {
    const void* bytes = sqlite3_column_blob(statement_.get(), at);
    const auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), at));
    return bytes == nullptr ? std::string_view()
                            : std::string_view(static_cast<const char*>(bytes), size);
  }
  int columns() const { return sqlite3_column_count(statement_.get()); }
  std::string_view name(int at) const { return sqlite3_column_name(statement_.get(), at); }

 private:
  sqlite3* database_;
  const std::filesystem::path& file_;
  std::unique_ptr<sqlite3_stmt, CloseSqlite> statement_;
};

}  // namespace trainmon
