// Rows as they leave the monitor, as lines of the wide table: with the step known by then.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "model/timeline.h"
#include "sinks/table.h"
#include "trainmon/sink.h"

namespace trainmon {

class LiveTable {
 public:
  LiveTable() = default;
  LiveTable(const RunInfo& run, const SeriesTable& series) : run_(run), series_(&series) {}

  // Takes in what a batch says about windows: before its rows are asked for.
  void learn(const RecordBatch& batch);
  // With every statistic. Valid until the next call.
  const TableRow& line(const Row& row);
  // Where a record is that follows the windows of an optimizer.
  Outcome place(std::int32_t optimizer, std::int64_t window) const {
    return timeline_.at(optimizer, window);
  }
  // The values of a group, each with the step known by then.
  std::vector<ReadDeclared> declared(const Declared& group) const;
  // All values that hold, as they were declared: for a file that begins anew.
  std::vector<ReadDeclared> declared_so_far() const;
  std::int32_t micro_step(std::int32_t accum) const;

 private:
  RunInfo run_;
  const SeriesTable* series_ = nullptr;
  Timeline timeline_;
  std::map<std::tuple<std::int32_t, std::int32_t, std::string>, ReadDeclared> declared_;
  Outcome place_{-1, -1};  // of the row before
  std::array<double, kStatCount> values_{};
  TableRow line_;
};

}  // namespace trainmon
