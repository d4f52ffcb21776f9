// Rows from which on a number is another one that was the same in all rows before, or in most.
// docs/detection.md has the rules.
#pragma once

#include <optional>

#include "answers/shift.h"
#include "trainmon/read.h"

namespace trainmon {

// Finds the row from which on an activation has zeros that had none. A copy goes on by itself.
class NewZeros {
 public:
  static constexpr int kRows = 8;

  // Before the first row with zeros.
  void begin() { has_ended_ = false; }
  // The share of zeros of each row from then on.
  void add(const RowPlace& place, double share);
  // The first one; its share, and the usual one, which is 0.
  const std::optional<Shift>& found() const { return found_; }

 private:
  RowPlace first_ = {};
  double of_first_ = 0.0;
  int rows_ = 0;
  bool has_ended_ = true;
  std::optional<Shift> found_;
};

// Finds the row from which on the largest of ids is missing, which most rows had. So is a class
// that stands for none, where it is not drawn any more. A copy goes on by itself.
class MissingLargest {
 public:
  static constexpr int kRows = 64, kMissing = 16;

  void add(const RowPlace& place, double largest);
  // The first one; the largest id of its row, and the usual one.
  const std::optional<Shift>& found() const { return found_; }

 private:
  double largest_ = 0.0;  // of all rows
  int rows_ = 0;          // from the first with it to the last
  int having_ = 0;        // of these, with it
  int missing_ = 0;       // rows after them
  RowPlace first_ = {};   // of these
  double of_first_ = 0.0;
  std::optional<Shift> found_;
};

}  // namespace trainmon
