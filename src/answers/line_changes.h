// Changes of lines that are no matter of their size.
#pragma once

#include <vector>

#include "answers/bias_sums.h"
#include "answers/line_shift.h"
#include "answers/line_value.h"
#include "answers/other_dtypes.h"
#include "answers/stopped_lines.h"
#include "trainmon/read.h"

namespace trainmon {

// All such changes of the lines of one rank, in the order of the log. A copy goes on by itself.
class LineChanges {
 public:
  explicit LineChanges(const std::vector<Series>& series)
      : stopped_(series), dtypes_(series), sums_(series) {}

  void add(const LineValue& value);
  void add_found(std::vector<LineShift>& to) const;
  // Another rank begins.
  void forget();

 private:
  StoppedLines stopped_;
  OtherDtypes dtypes_;
  BiasSums sums_;
};

}  // namespace trainmon
