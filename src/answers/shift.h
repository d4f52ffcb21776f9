// Where a number of each step shifts for good, and by less than its history tells: a logged loss,
// the norm of all gradients. docs/detection.md has the rule.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "answers/history.h"
#include "trainmon/read.h"

namespace trainmon {

struct Shift {
  Unusual<RowPlace> row;  // the first behind it
  double apart = 1.0;     // the factor, above 1, between the means of 8 values and of the 16 before
  bool begins = false;    // its start begins with the row
};

// Is given the values of one line in the order of their steps. A copy goes on by itself.
class ShiftSearch {
 public:
  static constexpr std::size_t kBefore = History::kMost, kAfter = 8;
  // A line is young for so many rows: many change fast then.
  static constexpr std::size_t kYoung = 64;

  // Finite. One that is not above 0 has no size: from it on nothing is looked for.
  void add(const RowPlace& place, double value);
  // The first one; the largest of those that overlap with it.
  const std::optional<Shift>& found() const { return found_; }

 private:
  static constexpr std::size_t kRows = kBefore + kAfter, kEarlier = 48;
  struct Value {
    RowPlace place;
    double value = 0.0;
    double log = 0.0;
  };
  void look();

  std::array<Value, kRows> last_ = {};  // the newest is the last
  // By how many standard errors means were apart where these values end. The newest is the last.
  std::array<double, kEarlier + kAfter> errors_ = {};
  std::size_t count_ = 0;
  std::optional<Shift> found_;
  double most_ = 0.0;      // the errors of found_
  std::size_t since_ = 0;  // values after those of found_
  bool has_ended_ = false;
};

}  // namespace trainmon
