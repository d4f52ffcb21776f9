// Offline: from the files of a run, or of msprobe's monitor, to other files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancelled.h"
#include "sources/source.h"

namespace trainmon {

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
std::string_view format_name(TargetFormat format);
std::optional<TargetFormat> target_format(std::string_view name);

struct ConvertOptions : SourceOptions {
  std::filesystem::path to;
  TargetFormat to_format = TargetFormat::csv;
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

struct ConvertReport : RowReport {
  MissingRanks missing;
  std::vector<std::string> incomplete;  // of a run: why its record is not complete, as RunRows
  std::vector<std::string> kinds;       // that the source has
};

// All or nothing: `to` gets its name when everything is in it. Throws std::invalid_argument for
// options that make no sense, SinkError when `to` cannot be written. Throws std::runtime_error
// where there is nothing to convert or `to` is in the way.
ConvertReport convert(const ConvertOptions& options);

}  // namespace trainmon
