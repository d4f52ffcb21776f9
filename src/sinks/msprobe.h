// The files of msprobe's TrainerMon, for the compatible face: a sink that writes its CSV layout.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainmon/sink.h"
#include "trainmon/stat.h"

namespace trainmon {

// One of Monitor V2: rows of these kinds go to one file, in the order of execution.
struct MsprobeMonitor {
  std::string name;                // of the file: "module"
  std::vector<std::string> kinds;  // actv, actv_grad, ...
  std::vector<Stat> ops;
  bool by_kind = false;  // first all rows of the first kind
};

struct MsprobeOptions {
  std::vector<Stat> ops = {Stat::norm};  // columns, in order; shape and dtype follow them
  std::optional<int> ndigits = 6;        // decimals of floating-point values; none: all
  std::int64_t steps_per_file = 1;
  std::int64_t grad_acc_steps = 1;       // micro-steps of a step
  bool micro_gradients = false;          // grad_unreduced of every micro-step, with its number
  bool files = true;                     // false: nothing is written, tensors() alone answers
  bool events = false;                   // TensorBoard's event files in place of CSV
  std::vector<MsprobeMonitor> monitors;  // Monitor V2: its files in place of those below
  std::int64_t first_step = 0;           // from which the steps of a file are counted
  bool chunk_names = false;              // names of V2 begin with their chunk: "0:fc.weight"
};

// The value of one tensor, as the formats `csv` and `api` give it.
struct MsprobeTensor {
  std::string tag;  // msprobe_tag(): "0:fc.input_0:0/rank0/actv"
  RowState state;
  std::vector<std::int64_t> shape;
  DType dtype = DType::float32;
};

// Rows of a step are held until the optimizer has taken it, then appended to one file per kind:
//
//   {prefix}_{a}-{b}.csv   vpp_stage,name,step[,micro_step],<ops>,shape,dtype
//
// with a..b the `steps_per_file` steps around the step, counted from 0. Rows of attempts that were
// skipped are left out, and so are rows whose kind has no file. A step whose files cannot be
// written as a whole leaves none of its rows behind and is tried again with the next outcome.
// A kill loses the rows of the step under way. With `events` the same steps go to one event file,
// "{tag}_{op}" each, and histograms of Adam's steps with them (docs/compatibility.md). With
// `monitors` the files are {name}_step{a}-{b}.csv
// vpp_stage,step,module_name,scope[,micro_step],<ops>
class MsprobeSink : public Sink {
 public:
  // Any thread. Columns from the step of the open window on.
  virtual void set_ops(std::vector<Stat> ops, std::int64_t from_window) = 0;
  // Any thread: tensors of this kind ("grad_reduced", ...) in the newest step that has some.
  virtual std::vector<MsprobeTensor> tensors(std::string_view kind) const = 0;
};
std::unique_ptr<MsprobeSink> make_msprobe_sink(const MsprobeOptions& options);

}  // namespace trainmon
