// Where rows come from: one source per format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "read/row_filter.h"
#include "sinks/table.h"
#include "sources/row_account.h"
#include "trainmon/read.h"

namespace trainmon {

//   log csv sqlite  what the sinks of these names wrote (docs/formats.md); csv and sqlite also what
//                   a conversion wrote
//   msprobe_csv     directories {time}-rank{r}-{id} with files {type}_{a}-{b}.csv
enum class SourceFormat : std::uint8_t { automatic, log, csv, sqlite, msprobe_csv };
std::string_view format_name(SourceFormat format);
std::optional<SourceFormat> source_format(std::string_view name);
// What a path holds; where a run has several, the one that says most. Throws std::runtime_error
// where there is nothing.
SourceFormat detected_format(const std::filesystem::path& from);

// The files of a directory whose names begin and end so, by name; empty where it cannot be read.
std::vector<std::filesystem::path> files_named(const std::filesystem::path& directory,
                                               std::string_view prefix, std::string_view suffix);

// What is read, and how.
struct SourceOptions {
  std::filesystem::path from;
  SourceFormat from_format = SourceFormat::automatic;
  ReadOptions select;              // merged: from logs only
  std::vector<std::string> stats;  // statistics by name; empty: all that the source has
  // Of msprobe's directories, closed: "Dec03_21-34-40"; empty: open.
  std::string time_start;
  std::string time_end;
};

class Source {
 public:
  // A part is read by one thread at a time; different parts by several at the same time.
  struct Part {
    int rank = 0;
    std::string kind;              // of all its rows; "" where it has several
    bool has_micro_steps = false;  // msprobe's: its files have the column micro_step
    std::int64_t bytes = 0;
  };
  // Called with every selected row. `values` of a row live as long as the call; its series and its
  // shape as long as the source.
  using Take = std::function<void(const TableRow&)>;

  virtual ~Source() = default;
  virtual const std::vector<Part>& parts() const = 0;
  // Of every row's values.
  virtual const std::vector<std::string>& stats() const = 0;
  // Those that rows of one kind have, where the source knows; otherwise stats().
  virtual std::vector<std::string> stats_of(const std::string&) const { return stats(); }
  virtual void read(std::size_t part, const Take& take, RowAccount& account) = 0;
  // The series lives as long as the source.
  using UsePayload = std::function<void(const Series&, const ReadPayload&)>;
  virtual void read_payloads(const UsePayload&, RowAccount&) {}
  // Scalars, alerts, gaps and missing ranks of a run; nullptr where there are none.
  virtual const RunRows* facts() const { return nullptr; }
  // msprobe's files name names and steps by rules of their own.
  virtual bool is_msprobe() const { return false; }
  // The steps that names of files speak of; nullopt where rows must tell.
  virtual std::optional<std::pair<std::int64_t, std::int64_t>> steps_of_names() const {
    return std::nullopt;
  }
  virtual std::vector<std::string> kinds() const = 0;
};

// Each throws std::runtime_error when the directory holds nothing of its kind.
std::unique_ptr<Source> open_log_source(const SourceOptions& options, RowAccount& account);
std::unique_ptr<Source> open_csv_source(const SourceOptions& options, RowAccount& account);
std::unique_ptr<Source> open_sqlite_source(const SourceOptions& options, RowAccount& account);
std::unique_ptr<Source> open_msprobe_source(const SourceOptions& options, RowAccount& account);
// The one for options.from_format; a log where that is automatic.
std::unique_ptr<Source> open_source(const SourceOptions& options, RowAccount& account);

// What a run of any source format holds beside its rows: scalars, declared values, alerts, gaps.
// `incomplete` also tells what cannot be used. Throws as read_run() does.
RunRows read_beside_rows(const std::filesystem::path& run, const ReadOptions& select);

}  // namespace trainmon
