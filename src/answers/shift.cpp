#include "answers/shift.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace trainmon {
namespace {

// Standard errors of the difference of means, and how far means are apart at least.
constexpr double kErrorsApart = 7.5, kFactor = 1.05;
// A line that falls or swings has a part of the difference between any two of its values. One that
// shifts has it between two neighbours, of which pairs are compared.
constexpr std::size_t kNeighbours = 2;
constexpr double kShare = 0.6;
// Its own swings before were smaller by this factor, in standard errors.
constexpr double kUnusual = 1.75;

}  // namespace

void ShiftSearch::add(const RowPlace& place, double value) {
  has_ended_ |= !(value > 0.0) || (found_ && since_ == kAfter);
  if (has_ended_) return;
  std::move(last_.begin() + 1, last_.end(), last_.begin());
  last_.back() = {place, value, std::log(value)};
  last_.back().place.shape = nullptr;
  ++count_;
  if (found_) ++since_;
  if (count_ >= kRows) look();
}

void ShiftSearch::look() {
  struct Moments {
    double mean = 0.0;
    double square_error = 0.0;  // of the mean
  };
  const auto moments = [](std::span<const Value> values) {
    const auto count = static_cast<double>(values.size());
    double mean = 0.0, m2 = 0.0;
    for (const Value& one : values) mean += one.log / count;
    for (const Value& one : values) m2 += (one.log - mean) * (one.log - mean);
    return Moments{mean, m2 / (count * (count - 1.0))};
  };
  const std::span<const Value> all(last_);
  const Moments before = moments(all.first(kBefore)), after = moments(all.last(kAfter));
  const double apart = after.mean - before.mean;
  // Values that are all alike have an error of 0.
  const double error = std::max(std::sqrt(before.square_error + after.square_error), 1e-9);
  const double errors = std::abs(apart) / error;
  std::move(errors_.begin() + 1, errors_.end(), errors_.begin());
  errors_.back() = errors;
  if (count_ < kYoung + kAfter || errors < std::max(kErrorsApart, most_)) return;
  if (std::abs(apart) < std::log(kFactor)) return;
  const double jump = moments(all.subspan(kBefore, kNeighbours)).mean -
                      moments(all.subspan(kBefore - kNeighbours, kNeighbours)).mean;
  // Those that are close share values with this one.
  const double own = *std::max_element(errors_.begin(), errors_.end() - kAfter);
  if (jump / apart < kShare || errors < kUnusual * own) return;
  History history;
  for (const Value& one : all.first(kBefore)) history.add(std::log10(one.value));
  const Value& first = last_[kBefore];
  found_ = {{history.score(std::log10(first.value)), history.usual(), first.place, first.value},
            std::exp(std::abs(apart)),
            last_[kBefore - 1].place.restart != first.place.restart};
  most_ = errors;
  since_ = 0;
}

}  // namespace trainmon
