// Where rows go: one target per format, written under a name of its own until all is in it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "sinks/table.h"
#include "sources/source.h"

namespace trainmon {

// Bytes that a target gathers before it writes them.
inline constexpr std::size_t kTargetBuffer = 1 << 20;

// Takes the rows of one part after the other, in order.
class RowWriter {
 public:
  virtual ~RowWriter() = default;
  virtual void take(const TableRow& row) = 0;
  virtual void end() = 0;
};

class Target {
 public:
  virtual ~Target() = default;
  // True: every part has a writer of its own, and they may work at the same time. False: one writer
  // for all, asked for once, with part 0.
  virtual bool is_part_by_part() const { return false; }
  virtual std::unique_ptr<RowWriter> writer(std::size_t part) = 0;
  // After all rows.
  virtual void finish(RowAccount& account) = 0;
};

// What a target is made from. `path` does not exist; it is a file or a directory as its format
// says.
struct TargetPlace {
  const ConvertOptions& options;
  std::filesystem::path path;
  Source& source;
  const std::vector<std::string>& stats;  // of the rows it will be given
};
std::unique_ptr<Target> make_csv_target(const TargetPlace& place);
std::unique_ptr<Target> make_jsonl_target(const TargetPlace& place);
std::unique_ptr<Target> make_sqlite_target(const TargetPlace& place);
std::unique_ptr<Target> make_tensorboard_target(const TargetPlace& place);
std::unique_ptr<Target> make_msprobe_db_target(const TargetPlace& place);
std::unique_ptr<Target> make_msprobe_trend_target(const TargetPlace& place);

}  // namespace trainmon
