// Losses given to log() that are not finite, though the step was. One may be a best loss before
// there is any, or a part of the loss that was not computed. A loop may have left the step out.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "trainmon/read.h"

namespace trainmon {

// A loss counts as what went wrong only from where it stays so to the end of its start. It does not
// where all gradients of one of these steps are finite. Nor does it where it was finite again twice
// before: a validation loss has no value in steps without a validation.
class PassedLosses {
 public:
  explicit PassedLosses(const RunRows& run);
  // Whose rows have to be shown by look(), in any order; a few.
  const std::set<std::int64_t>& steps() const { return steps_; }
  void look(const ReadRow& row, const Series& series);
  // Of a scalar of this run that is_loss() and not finite.
  bool is_passed(const ReadScalar& loss) const;
  // The first such value of each name that had been finite, or that never is in eight values.
  std::vector<ReadScalar> noticed(const RunRows& run) const;

 private:
  using Name = std::tuple<std::int32_t, std::int32_t, std::string>;  // restart, rank
  using Step = std::tuple<std::int32_t, std::int32_t, std::int64_t>;
  std::map<Name, std::vector<std::int64_t>> last_;  // steps since which each is not finite
  std::map<Name, int> returns_;                     // how often each was finite again
  std::set<std::int64_t> steps_;
  std::map<Step, bool> gradients_;  // where there are any, whether all are finite
};

}  // namespace trainmon
