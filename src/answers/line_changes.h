// Changes of lines that are no matter of their size.
#pragma once

#include <cstdint>
#include <vector>

#include "answers/bias_sums.h"
#include "answers/line_value.h"
#include "answers/other_dtypes.h"
#include "answers/shift.h"
#include "answers/stopped_lines.h"
#include "trainmon/read.h"

namespace trainmon {

// What of a line left its history.
enum class Measure : std::uint8_t {
  norm,
  mean,     // over the root mean square
  zeros,    // their share
  balance,  // the mean over the root mean square, where it was 0 but for rounding
  largest,  // of ids
  // What is no matter of size.
  rows,   // it has no more
  still,  // the norm, which does not change any more
  dtype,  // its number
  sum,    // over that of the gradients of its module's output
};

// Of a number of a line, with its series.
struct LineShift {
  Shift shift;
  std::uint32_t series;
  Measure measure;
  bool is_spread;  // not the measure itself, but its standard deviation
};

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
