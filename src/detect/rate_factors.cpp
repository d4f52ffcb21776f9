#include "detect/rate_factors.h"

#include <cmath>
#include <string>
#include <utility>

#include "base/text.h"

namespace trainmon::detect {
namespace {

constexpr int kStepsBefore = 64, kStepsAfter = 8;  // in a row with one quotient
constexpr double kSameFactor = 1e-6;               // schedules round, step by step

double jump(double now, double before) {
  return std::abs(std::log(now / before));
}

}  // namespace

void RateFactors::Factor::add(double rate, const First& first, std::int64_t step) {
  if (of != first.group) *this = {.of = first.group};
  const double now = rate / first.rate;
  if (steps > 0 && std::abs(now - value) <= kSameFactor * value) {
    ++steps;
  } else {
    is_of_first = steps > 0 && jump(first.rate, first.before) > jump(rate, last);
    before = value;
    steps_before = std::exchange(steps, 1);
    value = now;
    since = step;
  }
  last = rate;
}

void RateFactors::check(const Window& window, Findings& found) {
  for (const auto& [rank, optimizers] : window.declared) {
    for (const auto& [optimizer, groups] : optimizers) {
      First first;
      for (const auto& [group, values] : groups) {
        const double rate = value_of(values, "lr").value_or(0.0);
        Factor& factor = factors_[{rank, optimizer, group}];
        if (!(rate > 0.0) || !std::isfinite(rate)) {  // a frozen group
          factor = {};
        } else if (first.group < 0) {
          first = {group, rate, factor.last > 0.0 ? factor.last : rate};
          factor = {.last = rate};
        } else {
          factor.add(rate, first, window.now.step);
          const bool is_other = factor.steps == kStepsAfter && factor.steps_before >= kStepsBefore;
          if (!is_other || !said_.emplace(rank, optimizer).second) continue;
          say(window, rank, group, factor, found);
        }
      }
    }
  }
}

void RateFactors::say(const Window& window, std::int32_t rank, std::int32_t group,
                      const Factor& factor, Findings& found) {
  const bool turns = factor.is_of_first;
  const auto text = [&](double value) { return number_text(turns ? 1.0 / value : value, 4); };
  Finding one = window.notice(Check::config, Stage::update, rank, factor.since);
  one.text = "the learning rate of group " + std::to_string(turns ? factor.of : group) + " is " +
             text(factor.value) + " of that of group " + std::to_string(turns ? group : factor.of) +
             " from here on, and was " + text(factor.before) + " of it in the " +
             std::to_string(factor.steps_before) +
             " steps before; was one rate written into both groups, or a factor lost?";
  found.add(std::move(one));
}

}  // namespace trainmon::detect
