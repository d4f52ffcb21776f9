#include "detect/rate_slopes.h"

#include <cmath>
#include <string>

#include "base/text.h"

namespace trainmon::detect {
namespace {

constexpr int kAlike = 8;         // changes in a row, in each of the two starts
constexpr double kNearly = 0.05;  // neighbouring changes differ by this share at most
constexpr double kNear = 0.25;    // those of a schedule that goes on faster
constexpr double kFurther = 3.0;  // a start may begin so many changes further
constexpr double kOther = 1.5;    // the factor between the changes of two starts

bool is_like(double change, double before, double share) {
  return std::abs(change - before) <= share * std::abs(before);
}

}  // namespace

void RateSlopes::Rate::add(double value, std::int64_t step) {
  if (steps++ == 0) {
    since = step;
    // Another rate has another reason, and LearningRates says it.
    if (std::abs(value - last) > kFurther * std::abs(earlier)) earlier = 0.0;
  } else {
    const double now = (value - last) / static_cast<double>(step - last_step);
    const bool follows = steps > 2 && is_like(now, change, kNear);
    if (!follows) {
      steady = alike >= kAlike ? change : 0.0;
      times = steady != 0.0 ? now / steady : 0.0;
      broken = step;
    }
    following = follows ? following + 1 : 0;
    alike = steps > 2 && is_like(now, change, kNearly) ? alike + 1 : 1;
    change = now;
  }
  last = value;
  last_step = step;
}

void RateSlopes::begin() {
  said_.clear();
  said_in_middle_.clear();
  for (auto& [place, rate] : rates_) {
    rate = {.last = rate.last, .earlier = rate.alike >= kAlike ? rate.change : 0.0};
  }
}

void RateSlopes::check(const Window& window, Findings& found) {
  for (const auto& [rank, optimizers] : window.declared) {
    for (const auto& [optimizer, groups] : optimizers) {
      for (const auto& [group, values] : groups) {
        const auto value = value_of(values, "lr");
        if (!value || !std::isfinite(*value)) continue;
        const Place place(rank, optimizer, group);
        Rate& rate = rates_[place];
        rate.add(*value, window.now.step);
        check_start(window, place, rate, found);
        check_middle(window, place, rate, found);
      }
    }
  }
}

void RateSlopes::check_start(const Window& window, const Place& place, const Rate& rate,
                             Findings& found) {
  const auto [rank, optimizer, group] = place;
  const bool is_due = rate.earlier != 0.0 && rate.steps == kAlike + 1;
  if (!is_due || rate.alike < kAlike) return;
  const double factor = rate.change / rate.earlier;
  // Where a start begins as a warm-up has ended, the schedule turns.
  if (factor < 0.0 || (factor > 1.0 / kOther && factor < kOther)) return;
  if (!said_.emplace(rank, optimizer).second) return;
  Finding one = window.notice(Check::config, Stage::update, rank, rate.since);
  one.text =
      "this start goes on with the learning rate of the start before, but not with its "
      "schedule: that of group " +
      std::to_string(group) + " changed by " + number_text(rate.earlier, 3) +
      " in each step, and now " +
      (rate.change == 0.0 ? "it stays; a schedule that nobody steps?"
                          : "it changes by " + number_text(rate.change, 3) +
                                "; a schedule that is stepped more than once?");
  found.add(std::move(one));
}

void RateSlopes::check_middle(const Window& window, const Place& place, const Rate& rate,
                              Findings& found) {
  const auto [rank, optimizer, group] = place;
  if (rate.following != kAlike || rate.steady == 0.0) return;
  const double whole = std::round(rate.times);
  if (whole < 2.0 || std::abs(rate.times - whole) > kNearly * whole) return;
  if (!said_in_middle_.emplace(rank, optimizer).second) return;
  Finding one = window.notice(Check::config, Stage::update, rank, rate.broken);
  one.text = "the learning rate of group " + std::to_string(group) + " changes " +
             number_text(whole, 3) + " times as much in a step from here on, by " +
             number_text(rate.times * rate.steady, 3) + " after " + number_text(rate.steady, 3) +
             "; a schedule that is stepped more than once?";
  found.add(std::move(one));
}

}  // namespace trainmon::detect
