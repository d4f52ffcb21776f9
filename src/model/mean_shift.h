// Where the mean of the numbers of a line shifts for good, by less than single ones tell.
// docs/detection.md has the rule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

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

// Is given the numbers of one line in their order. A copy goes on by itself. One thread.
class MeanShifts {
 public:
  static constexpr std::size_t kBefore = 16;
  static constexpr std::size_t kMostAfter = 8;
  static constexpr std::size_t kRows = kBefore + kMostAfter;
  // A line is young for so many numbers: many change fast then.
  static constexpr std::size_t kYoung = 64;
  struct Found {
    std::size_t ago = 0;  // numbers since the first one behind the shift; 0: it is the last
    double apart = 0.0;   // that mean less the one before
    std::array<double, kBefore> before = {};  // numbers
    double first = 0.0;                       // the one behind it
  };

  explicit MeanShifts(const ShiftRule& rule) : rule_(rule) {}

  // From one on that is not finite, as the logarithm of 0, nothing is looked for. Gives a shift
  // that this number shows, and that goes further than any other that overlaps with it.
  std::optional<Found> add(double number);
  // One was found, and none is looked for any more.
  bool has_ended() const { return has_ended_; }

 private:
  static constexpr std::size_t kEarlier = 48;
  std::optional<Found> look();

  ShiftRule rule_;
  std::array<double, kRows> last_ = {};  // the newest is the last
  // How far means were apart where these numbers end: in standard errors, or by their size. The
  // newest is the last.
  std::array<double, kEarlier + kMostAfter> swings_ = {};
  std::array<double, kEarlier + kMostAfter> jumps_ = {};  // between neighbours, as swings_
  std::size_t count_ = 0;
  double most_ = 0.0;      // the errors of what was found; 0: nothing so far
  std::size_t since_ = 0;  // numbers after it
  bool has_ended_ = false;
};

}  // namespace trainmon
