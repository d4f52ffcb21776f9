#include "rules/rules.h"

#include <array>

namespace trainmon {
namespace {

using Options = RuleOptions;
using Made = std::unique_ptr<Rule>;

constexpr std::array<RuleMaker, 2> kMakers = {
    [](const Options& o) -> Made {
      if (o.deviation <= 0.0) return nullptr;
      return make_deviation_rule({.deviation = o.deviation, .stats = o.stats, .warmup = o.warmup});
    },
    [](const Options& o) -> Made {
      return o.limit <= 0.0 ? nullptr : make_limit_rule({.limit = o.limit, .stats = o.stats});
    },
};

}  // namespace

std::span<const RuleMaker> rule_makers() {
  return kMakers;
}

}  // namespace trainmon
