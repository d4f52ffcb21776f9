// A statistic that is not finite, or larger than anything reasonable.
#include <cmath>
#include <stdexcept>

#include "base/text.h"
#include "rules/check.h"

namespace trainmon {
namespace {

class LimitCheck final : public Check {
 public:
  explicit LimitCheck(const LimitRule& rule) : Check(rule.name, rule.stats), limit_(rule.limit) {
    if (limit_ && !(*limit_ >= 0)) {
      throw std::invalid_argument("rule " + rule.name + ": limit must not be negative");
    }
  }

  bool fires(const Judged& it) const override {
    return !std::isfinite(it.value) || (limit_ && std::abs(it.value) > *limit_);
  }

  std::string complaint(const Judged& it) const override {
    std::string text = "is not finite";
    if (std::isfinite(it.value)) {
      text = (it.value < 0 ? "has a size above the limit " : "exceeds the limit ") +
             number_text(*limit_, 6);
    }
    if (it.before.values > 0) {
      text += "; " + std::string(history_text(it.stat)) + " is " + number_text(it.before.mean, 6);
    }
    return text;
  }

 private:
  const std::optional<double> limit_;
};

}  // namespace

std::unique_ptr<Check> make_check(const LimitRule& rule) {
  return std::make_unique<LimitCheck>(rule);
}

}  // namespace trainmon
