// The alert rules that a configuration may ask for.
#pragma once

#include <memory>
#include <span>
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
// Makes a rule, or null where the options do not ask for it.
using RuleMaker = std::unique_ptr<Rule> (*)(const RuleOptions& options);
// In the order in which their rules look.
std::span<const RuleMaker> rule_makers();

}  // namespace trainmon
