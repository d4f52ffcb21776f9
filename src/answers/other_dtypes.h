// Rows from which on what modules are given and give has another dtype. docs/detection.md has the
// rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "answers/line_shift.h"
#include "answers/line_value.h"
#include "trainmon/read.h"

namespace trainmon {

// Inputs, activations and their gradients of one rank, in the order of the log. A framework that
// casts what it passes on begins to do so, or ends it. A copy goes on by itself.
class OtherDtypes {
 public:
  static constexpr std::int64_t kUsual = 16, kOther = 8;  // rows in a row

  explicit OtherDtypes(const std::vector<Series>& series);

  void add(const LineValue& value);
  // The first one of each line. Its numbers are those of the dtypes.
  const std::vector<LineShift>& found() const { return found_; }
  // Another rank begins.
  void forget();

 private:
  struct Line {
    DType dtype = {};
    std::int64_t rows = 0;    // with it
    std::int64_t others = 0;  // with another one, after them
    RowPlace first = {};      // of these
    std::int32_t restart = 0;
    bool begins = false;
    bool is_said = false;
  };

  std::vector<std::size_t> of_;  // by series: the place in lines_, and 1; 0: none
  std::vector<DType> dtypes_;    // by series
  std::vector<Line> lines_;
  std::vector<LineShift> found_;
};

}  // namespace trainmon
