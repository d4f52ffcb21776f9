// The tables of a run in a SQLite database (docs/formats.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sinks/sqlite_file.h"
#include "sinks/table.h"

namespace trainmon {

inline constexpr int kSqliteFormatVersion = 1;           // user_version
inline constexpr int kSqliteApplicationId = 0x746d6f6e;  // "tmon"

// The tables series, rows, outcomes, scalars, declared_values, payloads, alerts, gaps and meta, and
// the views that join them. Whoever adds records opens and ends the transactions.
class RunTables {
 public:
  // Makes them in an empty database; rows get a column per statistic.
  RunTables(Database& database, const std::vector<std::string>& statistics);

  void add_fact(std::string_view name, std::string_view value);
  void add_fact(std::string_view name, std::int64_t value);
  void add_series(std::int64_t id, const Series& series);
  // The fate and loss scale of a row are those of its outcome.
  void add_row(std::int64_t series, const TableRow& row);

  // Whose the records below are.
  struct Owner {
    std::int64_t restart = 0;
    std::int64_t rank = 0;
  };
  void add_outcome(const Owner& owner, const Outcome& outcome);  // a later one replaces it
  void add_scalar(const Owner& owner, std::int64_t optimizer, std::int64_t step,
                  const Scalar& scalar);
  void add_declared(const ReadDeclared& declared);
  void add_payload(const Owner& owner, std::int64_t series, const Outcome& place,
                   std::int64_t micro_step, const Payload& payload);
  void add_alert(const Owner& owner, std::int64_t series, const Alert& alert);  // joins repeats
  void add_gap(const Owner& owner, const Gap& gap);

 private:
  RunTables(Database& database, const std::string& add_row);

  Statement fact_;
  Statement series_;
  Statement row_;
  Statement outcome_;
  Statement scalar_;
  Statement declared_;
  Statement payload_;
  Statement alert_;
  Statement gap_;
  std::vector<bool> is_count_;
};

}  // namespace trainmon
