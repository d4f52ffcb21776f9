// The constants are measured: docs/compare.md says on what.
#include "compare/compare_tolerance.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trainmon {
namespace {

// In multiples of the unit round-off: what one rounding at the end may do to an element, and what
// the sum before it, which is float32 at best, has gathered.
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

void NoiseLevels::add(std::uint32_t tensor, const std::string& kind, std::int64_t step,
                      const SpreadLevels& levels) {
  OverSteps& here = tensors_[tensor];
  SpreadLevels largest = here.empty() ? SpreadLevels{} : here.rbegin()->second;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    if (!std::isfinite(levels[i])) continue;  // a NaN in one of them says nothing of rounding
    largest[i] = std::max(largest[i], levels[i]);
    collected_[kind][step][i].push_back(levels[i]);
    is_zero_ = is_zero_ && levels[i] == 0.0;
  }
  here[step] = largest;
}

void NoiseLevels::end() {
  for (auto& [kind, steps] : collected_) {
    SpreadLevels largest{};
    for (auto& [step, lists] : steps) {
      for (std::size_t i = 0; i < lists.size(); ++i) {
        std::vector<double>& list = lists[i];
        if (list.empty()) continue;
        const auto middle = list.begin() + static_cast<std::ptrdiff_t>(list.size() / 2);
        std::nth_element(list.begin(), middle, list.end());
        largest[i] = std::max(largest[i], *middle);
      }
      kinds_[kind][step] = largest;
    }
  }
  collected_.clear();
}

double NoiseLevels::last_until(const OverSteps& levels, std::int64_t step, Spread spread) {
  auto after = levels.upper_bound(step);
  if (after == levels.begin()) return 0.0;
  return (--after)->second[static_cast<std::size_t>(spread)];
}

double NoiseLevels::at(std::uint32_t tensor, const std::string& kind, std::int64_t step,
                       Spread spread) const {
  double level = 0.0;
  if (const auto found = tensors_.find(tensor); found != tensors_.end()) {
    level = last_until(found->second, step, spread);
  }
  if (const auto found = kinds_.find(kind); found != kinds_.end()) {
    level = std::max(level, last_until(found->second, step, spread));
  }
  return kSafety * level;
}

}  // namespace trainmon
