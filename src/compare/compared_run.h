// A run, of any format, as steps whose rows can be matched with those of another one.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "compare/compare.h"
#include "compare/compared_tensor.h"
#include "compare/step_rows.h"
#include "read/run_stream.h"
#include "sources/source.h"

namespace trainmon {

struct ComparedRun {
  explicit ComparedRun(bool has_dtypes) : tensors(has_dtypes) {}

  TensorTable tensors;
  std::unique_ptr<RunStream> stream;  // of a log
  std::unique_ptr<StepReader> steps;
  std::vector<ReadDeclared> declared;
  ComparedSide side;        // path and format; the rest once rows were read
  int world_size = 0;       // 0: not known
  std::string holds;        // ranks and kinds, selected or not; empty: not known
  double resolution = 0.0;  // of the values as written: msprobe's files hold six decimals
  RowAccount account;       // of what is no log
  std::vector<std::string> incomplete;
};

// Throws what the sources throw.
std::unique_ptr<ComparedRun> open_compared(const std::filesystem::path& run,
                                           const ReadOptions& select);
// After its last step: damage, rejected rows, missing ranks, a run that was cut.
std::vector<std::string> not_used(const ComparedRun& run);

}  // namespace trainmon
