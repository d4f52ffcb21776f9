// Where a number of each step shifts for good, and by less than its history tells. It is the
// logarithm of a logged loss or of the norm of all gradients, or the mean of an input.
// docs/detection.md has the rule.
#pragma once

#include <array>
#include <cstddef>
#include <numbers>
#include <optional>

#include "answers/history.h"
#include "trainmon/read.h"

namespace trainmon {

// Of two or more numbers.
struct Moments {
  double mean = 0.0;
  double variance = 0.0;
};
template <typename Values, typename Number>
Moments moments_of(const Values& values, const Number& number) {
  const auto count = static_cast<double>(values.size());
  double mean = 0.0, m2 = 0.0;
  for (const auto& one : values) mean += number(one) / count;
  for (const auto& one : values) m2 += (number(one) - mean) * (number(one) - mean);
  return {mean, m2 / (count - 1.0)};
}

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

// By which numbers a shift is told. A training may learn fast what has changed: then few are far
// off, and they must be farther.
struct ShiftRule {
  std::size_t after;  // numbers
  double errors;      // standard errors of the difference of the means, at least
  double apart;       // the means, at least, as a factor of what has these natural logarithms
  double unusual;     // its own swings before were smaller by this factor, in standard errors
  double jump;        // no two neighbours before were as far apart: by this factor
  bool is_steady;     // the noise is that of the values before alone
  bool is_level;      // its swings are compared by their size, for it has no trend
};
inline constexpr ShiftRule kLasting = {8, 7.5, 1.08, 1.75, 0.0, false, false};
// Gradients of sound trainings swing more than losses.
inline constexpr ShiftRule kOfGradients = {8, 7.5, 1.05, 2.5, 0.0, false, false};
// So do losses of both signs, and the means of inputs that follow what the model does.
inline constexpr ShiftRule kOfBothSigns = {8, 7.5, 1.1, 2.5, 0.0, false, true};
inline constexpr ShiftRule kOfInputs = {8,   6.0,   1.1, 2.5,
                                        0.0, false, true};  // their norms, entropies
// A mean that is no more 0 but for rounding.
inline constexpr ShiftRule kOfBalance = {8, 7.5, 10.0, 2.5, 0.0, false, true};
inline constexpr ShiftRule kShort = {4, 6.0, 1.15, 1.9, 1.2, true, false};

// Is given the numbers of one line in the order of their steps. A copy goes on by itself.
class ShiftSearch {
 public:
  static constexpr std::size_t kBefore = History::kMost, kAfter = kLasting.after;
  // A line is young for so many rows: many change fast then.
  static constexpr std::size_t kYoung = 64;
  // More numbers before that are all alike change nothing.
  static constexpr std::size_t kMemory = 2 * kYoung;

  explicit ShiftSearch(const ShiftRule& rule) : rule_(rule) {}

  // From one on that is not finite, as the logarithm of 0, nothing is looked for.
  void add(const RowPlace& place, double number);
  // The first one; the largest of those that overlap with it.
  const std::optional<Shift>& found() const { return found_; }

 private:
  static constexpr std::size_t kRows = kBefore + kAfter, kEarlier = 48;
  static_assert(kShort.after <= kAfter);
  struct Value {
    RowPlace place;
    double number = 0.0;
  };
  void look();

  ShiftRule rule_;
  std::array<Value, kRows> last_ = {};  // the newest is the last
  // How far means were apart where these values end: in standard errors, or by their size. The
  // newest is the last.
  std::array<double, kEarlier + kAfter> swings_ = {};
  std::array<double, kEarlier + kAfter> jumps_ = {};  // between neighbours, as swings_
  std::size_t count_ = 0;
  std::optional<Shift> found_;
  double most_ = 0.0;      // the errors of found_
  std::size_t since_ = 0;  // numbers after those of found_
  bool has_ended_ = false;
};

}  // namespace trainmon
