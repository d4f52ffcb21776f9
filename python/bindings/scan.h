// A run as tables of bounded size, decoded as somebody asks for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "arrow_export.h"
#include "read/run_stream.h"
#include "row_columns.h"

namespace trainmon {

// What is read, and all that is known of it before its rows. Any thread.
struct Scan {
  // Throws as read_run().
  Scan(const std::filesystem::path& run, const ReadOptions& options, std::vector<Stat> stats,
       std::size_t rows);

  const RunStream stream;
  const std::vector<Stat> stats;
  const std::size_t rows;  // of each table but the last
};

// Goes through the rows once, in the order of the logs: by rank, restart, and as they were written.
class ScanPass {
 public:
  explicit ScanPass(std::shared_ptr<const Scan> scan);
  // The next table; nullptr behind the last one. Without the GIL, and not by two threads at a time.
  // What could not be read is a RuntimeWarning of Python at the end; throws where that is an error.
  std::shared_ptr<ColumnTable> next();

 private:
  void read_pieces();
  void warn_of_damage();

  const std::shared_ptr<const Scan> scan_;
  RowColumns columns_;
  std::vector<ReadRow> rows_;  // read, of which the first given_ are in tables
  std::size_t given_ = 0;
  std::size_t next_piece_ = 0;
  std::vector<Damage> damage_;
};

}  // namespace trainmon
