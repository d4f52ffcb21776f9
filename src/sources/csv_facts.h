// What the CSV files beside the rows hold: scalars, declared values, alerts, gaps, payloads.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "model/timeline.h"
#include "read/joined_alerts.h"
#include "read/restarts.h"
#include "read/row_filter.h"
#include "read/series_index.h"
#include "sources/csv_columns.h"
#include "sources/kept_series.h"

namespace trainmon {

// Whose files a directory holds. `timeline` is null where no outcomes are known: then steps are
// those of the lines.
struct CsvPlace {
  std::filesystem::path directory;
  int rank = 0;
  int restart = 0;
  const Timeline* timeline = nullptr;
  int clock = 0;
};

class CsvFacts {
 public:
  // `restarts` must outlive it.
  CsvFacts(const ReadOptions& select, const Restarts& restarts)
      : options_(select), filter_(select), restarts_(restarts) {}

  // Reads all but payloads; lines that are none are rejected, but count as no rows.
  void add(const CsvPlace& place, RowAccount& account);
  void read_payloads(const CsvPlace& place, const Source::UsePayload& use, RowAccount& account);
  // After the last of them.
  void finish();
  void set_incomplete(std::vector<std::string> incomplete) {
    rows_.incomplete = std::move(incomplete);
  }
  // Series of it are those of alerts.
  const RunRows& rows() const { return rows_; }

 private:
  void add_scalars(const CsvPlace& place, RowAccount& account);
  void add_declared(const CsvPlace& place, RowAccount& account);
  void add_alerts(const CsvPlace& place, RowAccount& account);
  void add_gaps(const CsvPlace& place, RowAccount& account);

  const ReadOptions options_;
  const RowFilter filter_;
  const Restarts& restarts_;
  RunRows rows_;
  SeriesIndex series_;
  JoinedAlerts alerts_;
  KeptSeries payload_series_;
};

}  // namespace trainmon
