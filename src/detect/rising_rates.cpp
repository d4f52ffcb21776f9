#include "detect/rising_rates.h"

#include <cmath>

#include "base/text.h"

namespace trainmon::detect {
namespace {

constexpr int kRises = 8;
constexpr double kFallen = 0.1;  // of the largest rate

}  // namespace

void RisingRates::check(const Window& window, Findings& found) {
  for (const auto& [rank, optimizers] : window.declared) {
    for (const auto& [optimizer, groups] : optimizers) {
      for (const auto& [group, values] : groups) {
        const auto value = value_of(values, "lr");
        if (!value || !std::isfinite(*value)) continue;
        Rate& rate = rates_[{rank, optimizer, group}];
        if (*value < rate.last) rate.rises = 0;
        if (*value > rate.last && rate.rises++ == 0) {
          rate.from = rate.last;
          rate.since = window.now.step;
        }
        rate.last = *value;
        const bool is_again = rate.largest > 0.0 && rate.from <= kFallen * rate.largest;
        const double largest = rate.largest;
        // A warm-up has nothing to come back to.
        if (rate.rises == 0 || *value >= rate.largest)
          rate.largest = std::max(rate.largest, *value);
        if (rate.rises < kRises || !is_again || *value >= largest || rate.is_said) continue;
        rate.is_said = true;
        Finding one = window.finding(Check::config, Stage::update, rank);
        one.step = rate.since;
        one.certain = false;
        one.text = "the learning rate of group " + std::to_string(group) +
                   " rises again from here on, after it had fallen from " + number_text(largest) +
                   " to " + number_text(rate.from) + ": a schedule that goes on behind its end?";
        found.add(std::move(one));
        found.join_ranks(window.now.restart, rate.since);
      }
    }
  }
}

}  // namespace trainmon::detect
