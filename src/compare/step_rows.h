// The rows of a run, step after step, so that a comparison holds a few steps of it and not all.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "compare/compared_tensor.h"
#include "read/run_stream.h"
#include "sources/source.h"

namespace trainmon {

// All rows of one step, in no particular order.
struct StepRows {
  std::int64_t step = 0;
  std::vector<ComparedRow> rows;     // but for activations that are here in two forms
  std::vector<ComparedRow> merged;   // activations, merged over ranks as far as they can be
  std::vector<ComparedRow> by_rank;  // the same as every rank saw them

  void clear();
};

class StepReader {
 public:
  virtual ~StepReader() = default;
  // Goes back to the first step.
  virtual void rewind() = 0;
  // The next step, in ascending order; false at the end.
  virtual bool next(StepRows& rows) = 0;
  // After the last step, what could not be used is in the account.
  virtual void tell(RowAccount&) const {}
  // Ranks of activations that can be compared rank by rank, of the steps read.
  const std::set<std::int32_t>& ranks_of_activations() const { return ranks_; }

 protected:
  std::set<std::int32_t> ranks_;
};

// Of logs: memory is that of pieces of each rank, whatever the number of steps. Rows merged over
// ranks. Tensors are added to `tensors` as their rows come. Both must outlive it. So many threads
// decode rows ahead; what next() gives does not depend on their number.
std::unique_ptr<StepReader> log_steps(const RunStream& stream, TensorTable& tensors,
                                      unsigned threads);
// Of any other source, whose rows need not be in order: all of them are held, 120 bytes a row. Adds
// what the source holds to the account.
std::unique_ptr<StepReader> table_steps(Source& source, TensorTable& tensors, RowAccount& account);

}  // namespace trainmon
