// The steps of msprobe's format `tensorboard`: one event each, scalars "{tag}_{op}".
#pragma once

#include <cstdint>
#include <span>

#include "model/histogram.h"
#include "sinks/event_file.h"
#include "sinks/msprobe.h"
#include "sinks/msprobe_rows.h"

namespace trainmon::msprobe_csv {

// "0:fc.input_0:0/rank0/actv", of a row at its place in the step.
std::string tag_of(const Placed& placed, int rank, bool micro_gradients);

class StepEvents {
 public:
  void open(const RunInfo& run, bool micro_gradients);

  // The values of one step; nothing is in the file before write().
  void begin(std::int64_t time_ns, std::int64_t step);
  void add(const Placed& row, std::span<const Stat> ops);
  // A row of an L2 feature: the mean under the name of its column.
  void add_feature(const Placed& row, std::string_view column);
  // "all_reduce/rank0/post_0_norm"
  void add_collective(std::string_view name, std::string_view element, const RowState& state,
                      std::span<const Stat> ops);
  // "0:fc.weight/rank0/adam_update"
  void add(const Series& series, const Histogram& histogram);
  void end() { records_.end(); }

  // All steps since the last write() or clear(), or none of them.
  void write();
  void clear() { records_.clear(); }

 private:
  void open_file();

  RunInfo run_;
  bool micro_gradients_ = false;
  EventRecords records_;
  EventFile file_;
  int next_number_ = 0;
};

}  // namespace trainmon::msprobe_csv
