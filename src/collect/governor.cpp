// Medians of the last steps, one division, and a grid of fractions.
#include "collect/governor.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace trainmon {
namespace {

// Of the factor before any comparison. Hooks cost about a tenth more than they see of themselves.
constexpr double kGuess = 1.1;
constexpr double kGuessDeviation = 0.15;
constexpr double kLeastFactor = 0.5;
constexpr double kMostFactor = 4.0;
constexpr std::size_t kEnough = 4;        // steps of a sort before the first choice
constexpr std::int64_t kBetween = 8;      // steps from one look to the next
constexpr std::size_t kEnoughPairs = 6;   // comparisons before their spread means anything
constexpr std::int64_t kSmallest = 1024;  // at least one step in so many is recorded
constexpr double kLeastUsed = 0.85;       // of the budget,
constexpr double kMostUsed = 1.1;         // before another fraction is chosen

double median_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2.0;
}

}  // namespace

bool Keep::takes(std::int64_t step) const {
  std::int64_t number = step & (of - 1);
  std::int64_t backwards = 0;
  for (std::int64_t bit = 1; bit < of; bit <<= 1) {
    backwards = (backwards << 1) | (number & 1);
    number >>= 1;
  }
  return backwards < part;
}

template <std::size_t kRemembered>
void Governor::Recent<kRemembered>::add(double value) {
  values_[count_++ % kRemembered] = value;
}

template <std::size_t kRemembered>
double Governor::Recent<kRemembered>::median() const {
  return median_of({values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(size())});
}

template <std::size_t kRemembered>
double Governor::Recent<kRemembered>::deviation() const {
  const double middle = median();
  std::vector<double> off;
  for (std::size_t i = 0; i < size(); ++i) off.push_back(std::abs(values_[i] - middle));
  return 1.4826 * median_of(std::move(off));  // of a normal distribution
}

Governor::Governor(double budget, std::int64_t every)
    : budget_(budget), every_(static_cast<double>(every)), keep_{1, every == 1 ? 2 : 1} {}

bool Governor::take(const StepTime& step) {
  const Keep before = keep();
  if (burst_left_ > 0) --burst_left_;
  const bool is_usable = step.seconds > 0.0 && step.own >= 0.0 && step.own <= step.seconds &&
                         std::isfinite(step.seconds);
  if (++steps_ > 1 && is_usable) {
    compare(step);
    (step.recorded ? own_recorded_ : own_bare_).add(step.own);
    bare_.add(step.seconds - (decided_ ? factor_ : 1.0) * step.own);
  }
  const bool has_enough =
      own_recorded_.size() >= kEnough && (decided_ || keep_.of == 1 || own_bare_.size() >= kEnough);
  if (has_enough && (!decided_ || steps_ % kBetween == 0)) {
    estimate();
    const double share = share_of(keep_.share());
    const bool can_be_more = keep_ != Keep{} && share < kLeastUsed * budget_;
    if (!decided_ || can_be_more || share > kMostUsed * budget_) keep_ = largest_within_budget();
    decided_ = true;
  }
  return keep() != before;
}

bool Governor::found() {
  if (steps_ < next_burst_) return false;
  const Keep before = keep();
  burst_left_ = kBurst;
  next_burst_ = steps_ + kBurstPause;
  return keep() != before;
}

// The middle one of three steps, with whichever of its neighbours were bare.
void Governor::compare(const StepTime& step) {
  if (last_.recorded) {
    double sum = 0.0;
    int count = 0;
    for (const StepTime& beside : {before_last_, step}) {
      if (beside.recorded || beside.seconds <= 0.0) continue;
      sum += beside.seconds;
      ++count;
    }
    if (count > 0) differences_.add(last_.seconds - sum / count);
  }
  before_last_ = last_;
  last_ = step;
}

void Governor::estimate() {
  standing_ = own_bare_.median();
  const double own = std::max(own_recorded_.median() - standing_, 0.0);
  double weight = 1.0 / (kGuessDeviation * kGuessDeviation);
  double sum = weight * kGuess;
  if (differences_.size() >= kEnoughPairs && own > 0.0) {
    // A median has 1.2533 times the standard error of a mean. No spread at all is no certainty.
    const double error = 1.2533 * differences_.deviation() /
                         std::sqrt(static_cast<double>(differences_.size())) / own;
    const double pairs = 1.0 / std::max(error * error, 1e-4);
    weight += pairs;
    sum += pairs * differences_.median() / own;
  }
  factor_ = std::clamp(sum / weight, kLeastFactor, kMostFactor);
  cost_ = factor_ * own;
  step_ = std::max(bare_.median(), 1e-9);
}

double Governor::share_of(double kept) const {
  return decided_ || step_ > 0.0 ? (standing_ + kept / every_ * cost_) / step_ : 0.0;
}

double Governor::share() const {
  return decided_ ? share_of(keep_.share()) : 0.0;
}

double Governor::recorded_cost() const {
  return decided_ ? (standing_ + cost_) / step_ : 0.0;
}

bool Governor::is_out_of_reach() const {
  return decided_ && keep_.of >= kSmallest && share() > kMostUsed * budget_;
}

Keep Governor::largest_within_budget() const {
  if (share_of(1.0) <= budget_) return {};
  for (std::int64_t of = 16; of <= 16 * kSmallest; of *= 2) {
    for (std::int64_t part = 15; part >= 8; --part) {
      if (share_of(static_cast<double>(part) / static_cast<double>(of)) > budget_) continue;
      Keep keep{part, of};
      while (keep.part % 2 == 0) keep = {keep.part / 2, keep.of / 2};
      return keep.of > kSmallest * keep.part ? Keep{1, kSmallest} : keep;
    }
  }
  return {1, kSmallest};
}

}  // namespace trainmon
