#include "detect/learning_rates.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/text.h"

namespace trainmon::detect {
namespace {

constexpr int kRises = 8;
constexpr double kSteeper = 2.0;  // the last of them than the first
constexpr double kFallen = 0.1;   // of the largest rate
// A start may be off by so many times the largest change of a step, and by this share of the rate.
constexpr double kTimes = 3.0, kShare = 0.02;
constexpr double kKeeps = 0.9;  // of that change, in each step

std::optional<double> rate_of(const DeclaredOfRanks& declared, std::int32_t rank,
                              std::int32_t optimizer, std::int32_t group) {
  const GroupValues* const groups = groups_of(declared, rank, optimizer);
  if (groups == nullptr) return std::nullopt;
  const auto known = groups->find(group);
  return known == groups->end() ? std::nullopt : value_of(known->second, "lr");
}

}  // namespace

void LearningRates::check(const Window& window, Findings& found) {
  for (const auto& [rank, optimizers] : window.declared) {
    for (const auto& [optimizer, groups] : optimizers) {
      for (const auto& [group, values] : groups) {
        const auto value = value_of(values, "lr");
        if (!value || !std::isfinite(*value)) continue;
        const Place place(rank, optimizer, group);
        const auto [at, is_new] = rates_.try_emplace(place);
        // A rank that sat the earlier start out goes on behind none of its steps.
        const bool goes_on = !is_new && at->second.step >= earlier_step_;
        if (earlier_ && goes_on) check_start(window, place, *value, at->second, found);
        if (earlier_ && !goes_on) at->second = {};
        check_rises(window, place, *value, at->second, found);
      }
    }
  }
  earlier_.reset();
}

// The earlier start may have gone further than the step behind which this one begins: what it
// declared last is as right.
void LearningRates::check_start(const Window& window, const Place& place, double value, Rate& rate,
                                Findings& found) const {
  const auto [rank, optimizer, group] = place;
  const double bound = std::max(kTimes * rate.change, kShare * std::abs(rate.last));
  const auto declared = rate_of(*earlier_, rank, optimizer, group);
  const auto is_near = [&](double other) { return std::abs(value - other) <= bound; };
  if (is_near(rate.last) || (declared && is_near(*declared))) return;
  Finding one = window.finding(Check::config, Stage::start, rank);
  one.certain = false;
  one.text = "this start goes on behind step " + std::to_string(rate.step) +
             ", but not with its learning rate: that of group " + std::to_string(group) + " was " +
             number_text(rate.last) + " and is " + number_text(value) +
             "; a schedule that was not restored?";
  found.add(std::move(one));
  rate = {};
  rate.is_said = true;
}

void LearningRates::check_rises(const Window& window, const Place& place, double value, Rate& rate,
                                Findings& found) {
  const auto [rank, optimizer, group] = place;
  const double largest = rate.largest;
  if (value < rate.last) rate.rises = 0;
  if (value > rate.last && rate.rises++ == 0) {
    rate.from = rate.last;
    rate.rise = value - rate.last;
    rate.since = window.now.step;
  }
  // Nothing comes before the first.
  const double rise = value - rate.last;
  const double change = largest > 0.0 ? std::abs(rise) : 0.0;
  rate.change = std::max(change, kKeeps * rate.change);
  rate.last = value;
  rate.step = window.now.step;
  const bool is_again = largest > 0.0 && rate.from <= kFallen * largest;
  // A warm-up has nothing to come back to.
  if (rate.rises == 0 || value >= largest) rate.largest = std::max(largest, value);
  const bool is_long = rate.rises >= kRises && rise > kSteeper * rate.rise;
  if (!is_long || !is_again || value >= largest || rate.is_said) return;
  rate.is_said = true;
  Finding one = window.notice(Check::config, Stage::update, rank, rate.since);
  one.text = "the learning rate of group " + std::to_string(group) +
             " rises again from here on, after it had fallen from " + number_text(largest) +
             " to " + number_text(rate.from) + ": a schedule that goes on behind its end?";
  found.add(std::move(one));
}

}  // namespace trainmon::detect
