// What trainmon knows of a run, or of two, as one page: a file that opens in a browser, offline.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "answers/diagnose.h"
#include "compare/compare.h"
#include "trainmon/read.h"

namespace trainmon {

inline constexpr std::int64_t kReportBytes = std::int64_t{16} << 20;  // unless somebody asks

struct ReportOptions {
  ReadOptions select;  // of both runs; all_restarts and merged are not looked at
  std::optional<std::filesystem::path> other;  // a run that is held against the first one
  // The page is at most so large: steps share columns, which keep their extremes, until it is. What
  // the page itself and the verdict need is there in any case.
  std::int64_t max_bytes = kReportBytes;
  bool is_live = false;  // the page asks the server that it came from for what is new (src/serve)
  std::function<void(std::int64_t done, std::int64_t total)> progress;  // bytes; this thread
  std::function<bool()> cancelled;                                      // asked now and then
};

struct Report {
  std::string html;     // UTF-8
  std::string digest;   // of all that differs between two pages; the nonce of its scripts
  Diagnosis diagnosis;  // whose words the page begins with
  std::optional<Diagnosis> other_diagnosis;
  std::optional<CompareReport> comparison;  // of two runs that have something in common
  std::string not_compared;                 // of two runs that do not: why
  std::int64_t rows = 0;                    // of both
  std::int64_t step_width = 1;              // steps that share a column, away from the verdict
  std::int64_t left_out_lines = 0;          // a line: one tensor on one rank
  bool matches_nothing = false;  // options chose rows, there are none, and nothing was found
};

// Reads each run three times: what is small, the rows for the verdict, and for the pictures; two
// runs once more, as compare() does. Memory is bounded by `max_bytes` and by what diagnose() and
// compare() need. Throws as read_run(), and Cancelled.
Report report(const std::filesystem::path& run, const ReportOptions& options = {});

// Of a run that grows: what report() makes each time, byte for byte, from the rows that are new.
// Where that is not sure to be the same (a restart that goes through steps again, damage, a new
// tensor), all rows are read again. Between two pages it keeps at most 32 bytes for each of
// `options.max_bytes`. One thread.
class GrowingReport {
 public:
  // One run, and no options that choose rows.
  GrowingReport(std::filesystem::path run, ReportOptions options);
  ~GrowingReport();
  // Throws as report(); then the next one is made of all rows.
  Report make();
  // What was read for the newest page: of each row for the verdict, and for the pictures.
  std::int64_t rows_read() const;

 private:
  struct Kept;
  const std::filesystem::path run_;
  const ReportOptions options_;
  std::unique_ptr<Kept> kept_;
};

// What a page begins with, in a few lines: "first wrong: step 15, weights, rank 1, 2.weight".
struct ReportLine {
  std::string text;
  bool is_wrong = false;
};
std::vector<ReportLine> report_lines(const Report& report);
// The page inside another one, as an element that runs its scripts and reaches nothing else.
std::string report_frame(const Report& report);

// What each page begins with: a file that does not was not made here.
inline constexpr std::string_view kReportBegins = "<!doctype html>\n<!-- trainmon report -->\n";
// Throws std::runtime_error where write_report() would refuse this name. The name is empty, or of
// a folder, a pipe or a device, or of a file that is no report without `overwrite`.
void check_report_path(const std::filesystem::path& to, bool overwrite);
// Writes the page under a temporary name and gives it its own at the end. A report that is there is
// replaced, another file only with `overwrite`. Throws std::runtime_error and SinkError.
void write_report(const Report& report, const std::filesystem::path& to, bool overwrite);

}  // namespace trainmon
