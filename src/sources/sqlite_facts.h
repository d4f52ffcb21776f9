// What a database holds beside rows: scalars, declared values, alerts, gaps, payloads.
#pragma once

#include <filesystem>

#include "read/restarts.h"
#include "read/row_filter.h"
#include "read/series_index.h"
#include "read/sqlite_answer.h"
#include "sources/kept_series.h"
#include "sources/source.h"

namespace trainmon {

// The columns of a series: "s.kind, s.chunk, ...".
std::string series_columns();
// From those columns, the first of which is `first`. `fault`: what does not belong there.
Series series_from(const SqliteAnswer& answer, int first, std::string& fault);

class SqliteFacts {
 public:
  // `filter` must outlive it.
  explicit SqliteFacts(const RowFilter& filter) : filter_(filter) {}
  // Throws std::runtime_error. Records that cannot be used are rejected, but count as no rows.
  void add(sqlite3* database, const std::filesystem::path& file, RowAccount& account);
  // After the last of them: what holds of the newest restarts.
  void finish(const ReadOptions& options, const Restarts& restarts);
  void set_incomplete(std::vector<std::string> incomplete) {
    rows_.incomplete = std::move(incomplete);
  }
  // Those that the filter takes, of the newest restarts. One that cannot be read is rejected.
  void read_payloads(sqlite3* database, const std::filesystem::path& file, const Restarts& restarts,
                     const Source::UsePayload& use, RowAccount& account);
  // Series of it are those of alerts.
  const RunRows& rows() const { return rows_; }

 private:
  void add_scalars(sqlite3* database, const std::filesystem::path& file, RowAccount& account);
  void add_declared(sqlite3* database, const std::filesystem::path& file, RowAccount& account);
  void add_alerts(sqlite3* database, const std::filesystem::path& file, RowAccount& account);
  void add_gaps(sqlite3* database, const std::filesystem::path& file, RowAccount& account);

  const RowFilter& filter_;
  RunRows rows_;
  KeptSeries payload_series_;
};

}  // namespace trainmon
