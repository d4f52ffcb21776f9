// Offline: from the files of a run, or of msprobe's monitor, to other files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainmon/tools.h"

namespace trainmon {

//   log csv sqlite  what the sinks of these names wrote (docs/formats.md); csv and sqlite also what
//                   a conversion wrote
//   msprobe_csv     directories {time}-rank{r}-{id} with files {type}_{a}-{b}.csv
enum class SourceFormat : std::uint8_t { automatic, log, csv, sqlite, msprobe_csv };
//   csv jsonl tensorboard      a directory
//   sqlite msprobe_db          one file; msprobe_db with tables metric_{id}_step_{a}_{b}
//   msprobe_trend              one file, msprobe's newer schema, table trend_data
enum class TargetFormat : std::uint8_t {
  csv,
  jsonl,
  sqlite,
  tensorboard,
  msprobe_db,
  msprobe_trend,
};
std::string_view format_name(SourceFormat format);
std::string_view format_name(TargetFormat format);
std::optional<SourceFormat> source_format(std::string_view name);
std::optional<TargetFormat> target_format(std::string_view name);

struct ConvertOptions {
  std::filesystem::path from;
  SourceFormat from_format = SourceFormat::automatic;
  std::filesystem::path to;
  TargetFormat to_format = TargetFormat::csv;
  ReadOptions select;              // merged: from logs only
  std::vector<std::string> stats;  // statistics by name; empty: all that the source has
  // Of msprobe's directories, closed: "Dec03_21-34-40"; empty: open.
  std::string time_start;
  std::string time_end;
  std::int64_t step_partition = 500;  // msprobe_db: steps per table
  bool micro_steps_are_steps = true;  // msprobe_trend: micro steps counted on as steps
  bool safe_cells = false;  // csv: an apostrophe before text that a spreadsheet takes for a formula
  int threads = 1;
  bool overwrite = false;  // replace what is there; an error otherwise
  // Bytes of the source done and in all; now and then, from any thread.
  std::function<void(std::int64_t, std::int64_t)> progress;
  // Asked now and then; true ends the conversion with Cancelled and without any output.
  std::function<bool()> cancelled;
};

// Rows of the source that were not converted.
struct RejectedRows {
  std::filesystem::path file;
  std::int64_t line = 0;  // of a text file, from 1; 0: the file, or a place that `what` names
  std::int64_t rows = 1;  // 0: nobody can tell how many
  std::string what;
};

struct ConvertReport {
  std::int64_t rows = 0;  // of the source, selected: written + rejected + superseded
  std::int64_t written = 0;
  std::int64_t rejected = 0;
  std::int64_t superseded = 0;  // a restart went through their step again
  std::vector<RejectedRows> rejections;
  std::vector<std::string> remarks;  // what the target has no place for, and the like
  MissingRanks missing;
  std::vector<std::string> incomplete;  // of a run: why its record is not complete, as RunRows
  std::vector<std::string> kinds;       // that the source has
};

// The conversion was called off; there is no output.
class Cancelled : public std::runtime_error {
 public:
  Cancelled() : std::runtime_error("called off; nothing was written") {}
};

// All or nothing: `to` gets its name when everything is in it. Throws std::invalid_argument for
// options that make no sense, std::runtime_error where there is nothing to convert or `to` is in
// the way, SinkError when it cannot be written.
ConvertReport convert(const ConvertOptions& options);

// What a run of any source format holds beside its rows: scalars, declared values, alerts, gaps.
// `incomplete` also tells what cannot be used. Throws as read_run() does.
RunRows read_beside_rows(const std::filesystem::path& run, const ReadOptions& select);

}  // namespace trainmon
