// Which micro-step and call each row of a step is of, and the order of rows in msprobe's files.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sinks/msprobe.h"

namespace trainmon::msprobe_csv {

// A row at its place in the step.
struct Placed {
  const Row* row = nullptr;
  const Series* series = nullptr;
  std::int64_t micro_step = 0;
  std::int64_t call = 0;  // of a module called more than once in a micro-step

  // False if a device gave no value in time.
  bool is_known() const { return (row->key.flags & flag::kNotReady) == 0; }
};

// Rows of the file with this prefix, in its order.
std::vector<Placed> place(std::span<const Row> rows, std::string_view prefix,
                          const SeriesTable& table, const MsprobeOptions& options);

// Calls of each collective of the step, merged: its name and element, and the state.
std::map<std::pair<std::string, std::string>, RowState> merged_collectives(
    std::span<const Placed> placed);

// "fc", "fc.call_1" for the second call of a micro-step; with its element: "fc.call_1.output".
std::string called(const Placed& placed);
std::string name_of(const Placed& placed);

}  // namespace trainmon::msprobe_csv
