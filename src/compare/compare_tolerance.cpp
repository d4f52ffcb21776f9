// The constants are measured: docs/compare.md says on what.
#include "compare/compare_tolerance.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trainmon {
namespace {

// Both are multiples of the unit round-off. kStored is what one rounding at the end may do to an
// element. kSummed is what the sum before it, which is float32 at best, has gathered.
constexpr double kStored = 8.0;
constexpr double kSummed = 256.0;
constexpr double kFloat32 = 0x1p-24;
// Of an averaged statistic of many elements; not all rounding cancels.
constexpr double kNotCancelled = 1.0 / 8;

double larger(double a, double b) {  // ignores NaN
  return std::fmax(std::fabs(a), std::fabs(b));
}

double largest_element(const ComparedValues& a, const ComparedValues& b) {
  double largest = std::numeric_limits<double>::quiet_NaN();
  for (const std::size_t stat : {kMin, kMax, kAbsmax}) {
    largest = std::fmax(largest, larger(a[stat], b[stat]));
  }
  return largest;
}

}  // namespace

Spread spread_of(std::size_t stat) {
  return stat < kMin ? Spread::averaged : Spread::single;
}

std::array<double, kValueStats> relative_differences(const ComparedValues& a,
                                                     const ComparedValues& b, double at_least) {
  const double roots = std::sqrt(std::fmax(a[kCount], b[kCount]));
  double elements = largest_element(a, b), norm = larger(a[kNorm], b[kNorm]);
  if (at_least > 0.0) {
    elements = std::fmax(elements, at_least);
    norm = std::fmax(norm, at_least * roots);
  }
  double rms = norm / roots;
  if (std::isnan(rms)) rms = elements;  // a source without sizes
  std::array<double, kValueStats> differences{};
  for (std::size_t i = 0; i < kValueStats; ++i) {
    const double scale = i == kNorm ? norm : i < kMin ? rms : elements;
    const double difference = std::fabs(a[i] - b[i]);
    differences[i] = a[i] == b[i] ? 0.0 : difference / scale;
  }
  return differences;
}

SpreadLevels levels_of(const std::array<double, kValueStats>& differences) {
  SpreadLevels levels{};
  for (std::size_t i = 0; i < kValueStats; ++i) {
    double& level = levels[static_cast<std::size_t>(spread_of(i))];
    level = std::fmax(level, differences[i]);
  }
  return levels;
}

double rounding_level(Spread spread, double roundoff, std::int64_t count) {
  const double element = kStored * roundoff + kSummed * std::min(roundoff, kFloat32);
  if (spread == Spread::single || count <= 0) return element;
  return element * std::max(kNotCancelled, 1.0 / std::sqrt(static_cast<double>(count)));
}

double drift(std::int64_t steps) {
  return std::sqrt(1.0 + static_cast<double>(std::max<std::int64_t>(0, steps)));
}

void NoiseLevels::add(std::uint32_t tensor, int kind, const SpreadLevels& levels) {
  const auto number = static_cast<std::size_t>(kind);
  if (tensor >= tensors_.size()) tensors_.resize(tensor + 1, SpreadLevels{});
  if (number >= kinds_.size()) kinds_.resize(number + 1);
  for (std::size_t i = 0; i < levels.size(); ++i) {
    if (!std::isfinite(levels[i])) continue;  // a NaN in one of them says nothing of rounding
    tensors_[tensor][i] = std::max(tensors_[tensor][i], levels[i]);
    kinds_[number].of_step[i].push_back(levels[i]);
    is_zero_ = is_zero_ && levels[i] == 0.0;
  }
}

void NoiseLevels::end_step() {
  for (Kind& kind : kinds_) {
    for (std::size_t i = 0; i < kind.of_step.size(); ++i) {
      std::vector<double>& list = kind.of_step[i];
      if (list.empty()) continue;
      const auto middle = list.begin() + static_cast<std::ptrdiff_t>(list.size() / 2);
      std::nth_element(list.begin(), middle, list.end());
      kind.largest[i] = std::max(kind.largest[i], *middle);
      list.clear();
    }
  }
}

double NoiseLevels::at(std::uint32_t tensor, int kind, Spread spread) const {
  const auto number = static_cast<std::size_t>(kind), of_spread = static_cast<std::size_t>(spread);
  double level = 0.0;
  if (tensor < tensors_.size()) level = tensors_[tensor][of_spread];
  if (number < kinds_.size()) level = std::max(level, kinds_[number].largest[of_spread]);
  return kSafety * level;
}

}  // namespace trainmon
