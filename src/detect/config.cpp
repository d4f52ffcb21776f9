// What the groups of an optimizer say is compared with what they said. A rate may fall at once (a
// schedule of steps), return to what it was (a restart), and rise by as much as it rose before (a
// warm-up).
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

std::optional<double> value_of(const DeclaredGroup& group, const char* name) {
  const auto known = group.find(name);
  if (known == group.end() || std::isnan(known->second)) return std::nullopt;
  return known->second;
}

bool is_set(const DeclaredGroup& group, const char* name) {
  return value_of(group, name).value_or(0.0) != 0.0;
}

void DeclaredJumps::check(const Window& window, Findings& found) {
  for (const auto& [optimizer, groups] : window.declared) {
    for (const auto& [group, values] : groups) {
      for (const auto& [name, value] : values) {
        const bool is_rate = name == "lr";
        if ((!is_rate && !kFixed.contains(name)) || !std::isfinite(value)) continue;
        found.checked(Check::config);
        const std::string key =
            std::to_string(optimizer) + ":" + std::to_string(group) + ":" + name;
        const auto [known, is_new] = history_.try_emplace(key);
        History& history = known->second;
        const double rise = value - history.last;
        const bool is_jump =
            !is_new && value != history.last &&
            (!is_rate || (std::abs(value) > kRise * history.largest && history.values > 2 &&
                          rise > 2.0 * std::abs(history.rise)));
        if (is_jump) {
          Finding finding;
          finding.restart = window.now.restart;
          finding.step = window.now.step;
          finding.check = Check::config;
          finding.stage = Stage::update;
          finding.ranks = window.ranks;
          finding.value = value;
          finding.bound = history.last;
          finding.certain = is_rate;
          finding.text = name + " of group " + std::to_string(group) + " changed from " +
                         number_text(history.last) + " to " + number_text(value);
          found.add(std::move(finding));
        }
        history.rise = is_new ? 0.0 : rise;
        ++history.values;
        history.last = value;
        history.largest = std::max(history.largest, std::abs(value));
      }
    }
  }
}

}  // namespace trainmon::detect
