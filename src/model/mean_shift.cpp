#include "model/mean_shift.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

namespace trainmon {
namespace {

// A line that falls or swings has a part of the difference between any two of its values. One that
// shifts has it between two neighbours, of which pairs are compared.
constexpr std::size_t kNeighbours = 2;
constexpr double kShare = 0.6;

}  // namespace

std::optional<MeanShifts::Found> MeanShifts::add(double number) {
  has_ended_ |= !std::isfinite(number) || (most_ > 0.0 && since_ == rule_.after);
  if (has_ended_) return std::nullopt;
  std::move(last_.begin() + 1, last_.end(), last_.begin());
  last_.back() = number;
  ++count_;
  if (most_ > 0.0) ++since_;
  return count_ >= kBefore + rule_.after ? look() : std::nullopt;
}

std::optional<MeanShifts::Found> MeanShifts::look() {
  const auto moments = [](std::span<const double> values) {
    return moments_of(values, std::identity());
  };
  const auto push = [](auto& ring, double value) {
    std::move(ring.begin() + 1, ring.end(), ring.begin());
    ring.back() = value;
  };
  const auto all = std::span<const double>(last_).last(kBefore + rule_.after);
  const Moments before = moments(all.first(kBefore)), after = moments(all.last(rule_.after));
  const double apart = after.mean - before.mean;
  const double variance = rule_.is_steady ? before.variance : after.variance;
  // Values that are all alike have an error of 0.
  const double error = std::max(std::sqrt(before.variance / static_cast<double>(kBefore) +
                                          variance / static_cast<double>(rule_.after)),
                                1e-9);
  const double errors = std::abs(apart) / error;
  const double jump = moments(all.subspan(kBefore, kNeighbours)).mean -
                      moments(all.subspan(kBefore - kNeighbours, kNeighbours)).mean;
  const double swing = rule_.is_level ? std::abs(apart) : errors;
  push(swings_, swing);
  push(jumps_, std::abs(jump));
  if (count_ < kYoung + rule_.after || errors < std::max(rule_.errors, most_)) return std::nullopt;
  if (std::abs(apart) < std::log(rule_.apart) || jump / apart < kShare) return std::nullopt;
  // Those that are close share values with this one.
  const auto most_before = [&](const auto& ring, std::size_t close) {
    const auto end = ring.end() - static_cast<std::ptrdiff_t>(close);
    return *std::max_element(end - static_cast<std::ptrdiff_t>(kEarlier), end);
  };
  if (swing < rule_.unusual * most_before(swings_, rule_.after)) return std::nullopt;
  if (std::abs(jump) < rule_.jump * most_before(jumps_, kNeighbours)) return std::nullopt;
  Found found{rule_.after - 1, apart, {}, all[kBefore]};
  std::ranges::copy(all.first(kBefore), found.before.begin());
  most_ = errors;
  since_ = 0;
  return found;
}

}  // namespace trainmon
