#include "answers/loss_shift.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "answers/history.h"
#include "answers/left_lines.h"

namespace trainmon {
namespace {

constexpr std::size_t kBefore = History::kMost, kAfter = LeftLines::kStays;
// Standard errors of the difference of means, and how far means are apart at least.
constexpr double kErrorsApart = 6.5, kFactor = 1.05;
// A loss that falls or swings has a part of the difference between any two of its values. One that
// shifts has it between two neighbours, of which pairs are compared.
constexpr std::size_t kNeighbours = 2;
constexpr double kShare = 0.6;
// Its own swings before were smaller by this factor, in standard errors.
constexpr double kUnusual = 1.75;
constexpr std::size_t kOwn = 48;

struct Moments {
  double mean = 0.0;
  double square_error = 0.0;  // of the mean
};

Moments moments(std::span<const double> values) {
  const auto count = static_cast<double>(values.size());
  double mean = 0.0, m2 = 0.0;
  for (const double value : values) mean += value / count;
  for (const double value : values) m2 += (value - mean) * (value - mean);
  return {mean, m2 / (count * (count - 1.0))};
}

}  // namespace

std::optional<LossShift> loss_shift(std::span<const double> values) {
  if (std::ranges::any_of(values, [](double value) { return !(value > 0.0); })) return std::nullopt;
  std::vector<double> logs;
  for (const double value : values) logs.push_back(std::log(value));
  std::vector<double> errors;  // how many the means are apart, from kBefore on
  std::optional<LossShift> found;
  double most = 0.0;
  const std::span all(logs);
  for (std::size_t at = kBefore; at + kAfter <= logs.size(); ++at) {
    const Moments before = moments(all.subspan(at - kBefore, kBefore));
    const Moments after = moments(all.subspan(at, kAfter));
    const double apart = after.mean - before.mean;
    // Values that are all alike have an error of 0.
    const double error = std::max(std::sqrt(before.square_error + after.square_error), 1e-9);
    errors.push_back(std::abs(apart) / error);
    if (found && at > found->at + kAfter) break;
    if (at < LeftLines::kYoung || errors.back() < std::max(kErrorsApart, most)) continue;
    if (std::abs(apart) < std::log(kFactor)) continue;
    const double jump = moments(all.subspan(at, kNeighbours)).mean -
                        moments(all.subspan(at - kNeighbours, kNeighbours)).mean;
    if (jump / apart < kShare) continue;
    // Those that are close share values with this one.
    const auto close = errors.end() - kAfter;
    const auto own = close - static_cast<std::ptrdiff_t>(std::min(kOwn, errors.size() - kAfter));
    if (errors.back() < kUnusual * *std::max_element(own, close)) continue;
    most = errors.back();
    found = {at, std::exp(std::abs(apart))};
  }
  return found;
}

}  // namespace trainmon
