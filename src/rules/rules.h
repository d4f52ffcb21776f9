// The alert rules that a configuration may ask for.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "trainmon/rule.h"

namespace trainmon {

// What the configuration says for rules.
struct RuleOptions {
  double deviation = 0.0;  // 0: none asked for
  double limit = 0.0;      // 0: none asked for
  int warmup = 0;
  std::vector<Stat> stats;
};
// One line of the table of rules.
struct RuleType {
  std::string_view name;
  std::unique_ptr<Rule> (*make)(const RuleOptions& options);  // null where it is not asked for
};
// In the order in which they look.
std::span<const RuleType> rule_types();

}  // namespace trainmon
