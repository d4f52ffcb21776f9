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

  bool fires(double value, const RunningMean&) const override {
    return !std::isfinite(value) || (limit_ && std::abs(value) > *limit_);
  }

  std::string complaint(double value, const RunningMean& before) const override {
    std::string text = std::isfinite(value) ? "exceeds the limit " + number_text(*limit_, 6)
                                            : std::string("is not finite");
    if (before.values > 0) text += "; the mean of its history is " + number_text(before.mean, 6);
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
