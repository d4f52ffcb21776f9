#include "detect/rate_slopes.h"

#include <cmath>
#include <string>

#include "base/text.h"

namespace trainmon::detect {
namespace {

constexpr int kAlike = 8;         // changes in a row, in each of the two starts
constexpr double kNearly = 0.05;  // neighbouring changes differ by this share at most
constexpr double kFurther = 3.0;  // a start may begin so many changes further
constexpr double kOther = 1.5;    // the factor between the changes of two starts

bool is_like(double change, double before) {
  return std::abs(change - before) <= kNearly * std::abs(before);
}

}  // namespace

void RateSlopes::Rate::add(double value, std::int64_t step) {
  if (steps++ == 0) {
    since = step;
    // Another rate has another reason, and LearningRates says it.
    if (std::abs(value - last) > kFurther * std::abs(earlier)) earlier = 0.0;
  } else {
    const double now = (value - last) / static_cast<double>(step - last_step);
    alike = steps > 2 && is_like(now, change) ? alike + 1 : 1;
    change = now;
  }
  last = value;
  last_step = step;
}

void RateSlopes::begin() {
  said_.clear();
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
        Rate& rate = rates_[{rank, optimizer, group}];
        rate.add(*value, window.now.step);
        const bool is_due = rate.earlier != 0.0 && rate.steps == kAlike + 1;
        if (!is_due || rate.alike < kAlike) continue;
        const double factor = rate.change / rate.earlier;
        // Where a start begins as a warm-up has ended, the schedule turns.
        if (factor < 0.0 || (factor > 1.0 / kOther && factor < kOther)) continue;
        if (!said_.emplace(rank, optimizer).second) continue;
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
    }
  }
}

}  // namespace trainmon::detect
