// Lines that stop: they have no more rows, or their numbers do not change any more.
// docs/detection.md has the rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "answers/line_shift.h"
#include "answers/line_value.h"
#include "trainmon/read.h"

namespace trainmon {

// A module is given a tensor no more, or no gradient reaches one of its tensors any more: other
// rows of the module go on. What ends in all modules at once, or with a start in most, is not
// recorded any more. And what an optimizer keeps, and changes in each step or in each tenth, may
// stay as it is. Lines of one rank, in the order of the log. A copy goes on by itself.
class StoppedLines {
 public:
  static constexpr std::int64_t kRows = 16;  // so many tell how long one is away
  static constexpr std::int64_t kAway = 8, kTimesLongest = 3;

  explicit StoppedLines(const std::vector<Series>& series);

  void add(const LineValue& value);
  // By the rows so far. The row of each is the first that lacks, or that should have another
  // number. Its usual number is how long one was away at most: in steps, or in rows.
  std::vector<LineShift> found() const;
  // Another rank begins.
  void forget();

 private:
  struct Module {
    std::int64_t steps = 0;  // with a row
    std::int32_t restart = -1;
    std::int64_t step = -1;
    std::map<std::int32_t, std::int64_t> starts = {};  // the first step of each
  };
  struct Line {
    std::uint32_t series = 0;
    std::size_t module = 0;    // the place in modules_, and 1; 0: it is a state
    bool is_grad = false;      // of an activation
    bool is_input = false;     // of its module
    std::int64_t rows = 0;     // in steps of their own, or with another number
    std::int64_t longest = 0;  // from one to the next
    std::int64_t last = 0;     // the step of its module, or so many rows had one number
    std::int64_t stride = 1;   // between the last two steps
    RowPlace place = {};       // of the last row, or of the first that should be another
    double number = 0.0;
  };
  void add_to_module(const LineValue& value, Line& line);
  LineShift stopped(const Line& line) const;
  void leave_out_unrecorded(std::vector<LineShift>& all) const;
  static void add_to_state(const LineValue& value, Line& line);

  std::vector<std::size_t> of_;  // by series: the place in lines_, and 1; 0: none
  std::vector<Line> lines_;
  std::vector<Module> modules_;
};

}  // namespace trainmon
