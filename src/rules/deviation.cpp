// A statistic that is far from the mean of what it was.
#include <cmath>
#include <stdexcept>

#include "base/text.h"
#include "rules/check.h"

namespace trainmon {
namespace {

class DeviationCheck final : public Check {
 public:
  explicit DeviationCheck(const DeviationRule& rule)
      : Check(rule.name, rule.stats), deviation_(rule.deviation), warmup_(rule.warmup) {
    if (!(deviation_ >= 0) || warmup_ < 0) {
      throw std::invalid_argument("rule " + rule.name +
                                  ": deviation and warmup must not be negative");
    }
  }

  bool fires(const Judged& it) const override {
    const RunningMean& before = it.before;
    if (!std::isfinite(it.value) || before.values == 0 || before.values < warmup_) return false;
    const double size = std::abs(it.value);
    return size > before.mean * (1 + deviation_) || size < before.mean * (1 - deviation_);
  }

  std::string complaint(const Judged& it) const override {
    const bool is_above = std::abs(it.value) > it.before.mean;
    return std::string(comparison_text(it.value, is_above)) + " " +
           std::string(history_text(it.stat)) + ", " + number_text(it.before.mean, 6) +
           ", by more than " + number_text(100 * deviation_, 6) + " %";
  }

 private:
  const double deviation_;
  const int warmup_;
};

}  // namespace

std::unique_ptr<Check> make_check(const DeviationRule& rule) {
  return std::make_unique<DeviationCheck>(rule);
}

}  // namespace trainmon
