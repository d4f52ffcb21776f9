// What the groups of an optimizer say is compared with what they said. A rate may fall at once (a
// schedule of steps), return to what it was (a restart), rise from zero (thawing), and rise by as
// much as it rose before (a warm-up). Of each value the first change is said.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/text.h"
#include "detect/checks.h"

namespace trainmon::detect {
namespace {

// A rate may be so many times the largest before it without being a jump.
constexpr double kRise = 1.87;
// Values that no schedule changes in common use.
const std::set<std::string> kFixed = {"betas.0", "betas.1", "eps", "weight_decay", "maximize"};

}  // namespace

void DeclaredJumps::check(const Window& window, Findings& found) {
  for (const auto& [rank, optimizers] : window.declared) {
    for (const auto& [optimizer, groups] : optimizers) {
      for (const auto& [group, values] : groups) {
        for (const auto& [name, value] : values) {
          if ((name != "lr" && !kFixed.contains(name)) || !std::isfinite(value)) continue;
          found.checked(Check::config);
          const std::string key = std::to_string(rank) + ":" + std::to_string(optimizer) + ":" +
                                  std::to_string(group) + ":" + name;
          const double last = history_[key].last;
          if (!is_jump(history_[key], value, name == "lr")) continue;
          Finding finding = window.finding(Check::config, Stage::update, rank);
          finding.value = value;
          finding.bound = last;
          finding.certain = false;  // a schedule may do so
          finding.text = name + " of group " + std::to_string(group) + " changed from " +
                         number_text(last) + " to " + number_text(value);
          found.add(std::move(finding));
        }
      }
    }
  }
}

bool DeclaredJumps::is_jump(History& history, double value, bool is_rate) {
  const bool is_new = history.values++ == 0;
  const double rise = is_new ? 0.0 : value - history.last;
  const bool is_risen = std::abs(value) > kRise * history.largest && history.values > 3 &&
                        history.largest > 0.0 && rise > 2.0 * std::abs(history.rise);
  const bool jumps = !is_new && rise != 0.0 && !history.is_said && (!is_rate || is_risen);
  history.is_said = history.is_said || jumps;
  history.rise = rise;
  history.last = value;
  history.largest = std::max(history.largest, std::abs(value));
  return jumps;
}

}  // namespace trainmon::detect
