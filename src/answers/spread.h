// Rows from which on a number of a line swings more than before, or less. docs/detection.md has the
// rule.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "answers/shift.h"
#include "trainmon/read.h"

namespace trainmon {

// Is given the numbers of one line in the order of their steps. A copy goes on by itself.
class SpreadSearch {
 public:
  static constexpr std::size_t kBefore = 64, kAfter = 24;

  // From one on that is not finite, nothing is looked for. It begins anew where rows lack.
  void add(const RowPlace& place, double number);
  // The first one. Its row has the natural logarithm of the standard deviation from there on, and
  // the usual one is that of the numbers before.
  std::optional<Shift> found() const;

 private:
  // Whether the last kAfter numbers swing more, or less, than those before.
  bool is_apart();
  void split();

  Stride stride_;
  std::array<double, kBefore + kAfter> numbers_ = {};  // the newest is the last
  std::array<RowPlace, kBefore> places_ = {};          // of the last of them
  // How far standard deviations were apart where the last kAfter numbers end, and the most before.
  std::array<double, kAfter> swings_ = {};
  double most_ = 0.0;
  std::size_t count_ = 0;
  std::optional<Shift> split_;
  std::size_t since_ = 0;  // numbers after those that showed it
  bool has_ended_ = false;
};

// Finds the row from which on a number stays, which was another one in almost each row before. The
// share of zeros of a mask that is drawn once does. A copy goes on by itself.
class FrozenSearch {
 public:
  static constexpr int kSame = 8, kOthers = 48;  // rows

  void add(const RowPlace& place, double number);
  // As that of SpreadSearch. What does not swing has a thousandth of the standard deviation before.
  const std::optional<Shift>& found() const { return found_; }

 private:
  RowPlace first_ = {};  // with the last number
  double last_ = 0.0;
  double variance_ = 0.0;  // from neighbours that differ; what is long ago counts less
  int others_ = 0;         // numbers that differ from the one before, less those that do not
  int same_ = 0;           // after first_
  std::optional<Shift> found_;
};

}  // namespace trainmon
