// How far two sound runs may be apart: rounding, its growth over steps, and the noise of a repeat.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "trainmon/stat.h"

namespace trainmon {

// The statistics that are compared, in this order. Counts come last: they are equal or not.
inline constexpr std::array<Stat, 9> kComparedStats = {Stat::norm, Stat::mean, Stat::std,
                                                       Stat::min,  Stat::max,  Stat::absmax,
                                                       Stat::nans, Stat::infs, Stat::count};
inline constexpr std::size_t kValueStats = 6;
// Where each stands among them.
inline constexpr std::size_t kNorm = 0, kMean = 1, kMin = 3, kMax = 4, kAbsmax = 5, kNans = 6,
                             kInfs = 7, kCount = 8;

// NaN where a statistic is not there or is one.
using ComparedValues = std::array<double, kComparedStats.size()>;

// Of two classes: rounding of many elements partly cancels in a norm, a mean or a standard
// deviation, and not in an extreme element.
enum class Spread : std::uint8_t { averaged, single };
Spread spread_of(std::size_t stat);

// Relative differences of the statistics kComparedStats[0 .. kValueStats). They are relative to
// the norm (norm), to the root mean square (mean, std) and to the largest element of both (min,
// max, absmax). NaN where one has no value, 0 where both are equal, infinities included. Elements
// count as not smaller than `at_least`, in root mean square.
std::array<double, kValueStats> relative_differences(const ComparedValues& a,
                                                     const ComparedValues& b,
                                                     double at_least = 0.0);
// The larger one of each class; 0 where there is none.
using SpreadLevels = std::array<double, 2>;
SpreadLevels levels_of(const std::array<double, kValueStats>& differences);

// What rounding alone may come to, for a tensor of `count` elements (0: not known). The tensor
// is, or was computed from, numbers with this unit round-off.
double rounding_level(Spread spread, double roundoff, std::int64_t count);

// Rounding is fed back into training: by so much its trace may have grown after so many steps.
double drift(std::int64_t steps);

// The share of what a weight moves in a step that may be noise. The rounding of a gradient that
// is zero but for rounding becomes steps of full size in optimizers that divide by a gradient's
// size.
inline constexpr double kNoisyShare = 1.0 / 4;
// The same where all of a gradient may be rounding: steps of both runs in opposite directions.
inline constexpr double kNoiseShare = 2.0;

// Noise of a repeated run, by tensor and by kind; at a step the largest up to it. Kinds are small
// numbers.
class NoiseLevels {
 public:
  // Of a step, the steps in ascending order.
  void add(std::uint32_t tensor, int kind, const SpreadLevels& levels);
  void end_step();
  bool is_zero() const { return is_zero_; }
  // What a sound run may differ by at the step that ended last: the noise times a safety factor.
  // The noise is that of the tensor, or the median over tensors of its kind where that is larger.
  double at(std::uint32_t tensor, int kind, Spread spread) const;

  static constexpr double kSafety = 10.0;

 private:
  struct Kind {
    std::array<std::vector<double>, 2> of_step;
    SpreadLevels largest{};  // of the medians of steps
  };
  std::vector<SpreadLevels> tensors_;
  std::vector<Kind> kinds_;
  bool is_zero_ = true;
};

}  // namespace trainmon
