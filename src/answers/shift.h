// Rows with which a number of each step shifts for good, and by less than its history tells. It may
// be the logarithm of a logged loss or of a norm, a mean over the root mean square, or a share of
// zeros.
#pragma once

#include <array>
#include <cstddef>
#include <numbers>
#include <optional>

#include "answers/history.h"
#include "model/mean_shift.h"
#include "trainmon/read.h"

namespace trainmon {

// A number as that of a row, beside the numbers before it.
template <typename Values, typename Number>
Unusual<RowPlace> unusual_of(const Values& before, const Number& number, const RowPlace& place,
                             double of_row) {
  constexpr double kTen = std::numbers::ln10;  // a History has decimal logarithms
  History history;
  for (const auto& one : before) history.add(number(one) / kTen);
  return {history.score(of_row / kTen), kTen * history.middle(), place, of_row};
}

struct Shift {
  Unusual<RowPlace> row;  // the first behind it, with numbers as they were given
  double apart = 0.0;     // between the means of `after` numbers and of the 16 before, above 0
  std::size_t after = 0;
  bool begins = false;  // its start begins with the row
};

inline constexpr ShiftRule kLasting = {8, 7.5, 1.08, 1.75, 0.0, false, false};
// Gradients of sound trainings swing more than losses.
inline constexpr ShiftRule kOfGradients = {8, 7.5, 1.05, 2.5, 0.0, false, false};
// So do losses of both signs, and the means of inputs that follow what the model does.
inline constexpr ShiftRule kOfBothSigns = {8, 7.5, 1.1, 2.5, 0.0, false, true};
inline constexpr ShiftRule kOfInputs = {8,   6.0,   1.1, 2.5,
                                        0.0, false, true};  // their norms, entropies
// The norm of ids, of which a batch may have some that are far larger.
inline constexpr ShiftRule kOfIds = {8, 6.0, 1.3, 2.5, 0.0, false, true};
// A mean that is no more 0 but for rounding.
inline constexpr ShiftRule kOfBalance = {8, 7.5, 10.0, 2.5, 0.0, false, true};
inline constexpr ShiftRule kShort = {4, 6.0, 1.15, 1.9, 1.2, true, false};

// Is given the numbers of one line in the order of their steps. A copy goes on by itself.
class ShiftSearch {
 public:
  static constexpr std::size_t kBefore = MeanShifts::kBefore, kAfter = kLasting.after;
  static_assert(kBefore == History::kMost && kAfter == MeanShifts::kMostAfter);
  static constexpr std::size_t kYoung = MeanShifts::kYoung;
  // More numbers before that are all alike change nothing.
  static constexpr std::size_t kMemory = 2 * kYoung;

  explicit ShiftSearch(const ShiftRule& rule) : rule_(rule), numbers_(rule) {}

  // As MeanShifts::add(). It begins anew where rows lack.
  void add(const RowPlace& place, double number);
  // The first one; the largest of those that overlap with it.
  const std::optional<Shift>& found() const { return found_; }

 private:
  ShiftRule rule_;
  MeanShifts numbers_;
  Stride stride_;
  std::array<RowPlace, MeanShifts::kRows> last_ = {};  // of them; the newest is the last
  std::optional<Shift> found_;
};

}  // namespace trainmon
