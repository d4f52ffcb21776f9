// What all checks share: their statistics, the running mean, how a series is called.
#include "rules/check.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/text.h"

namespace trainmon {

void RunningMean::add(double value) {
  constexpr double kKept = 0.99;
  if (!std::isfinite(value)) return;
  const double size = std::abs(value);
  mean = values++ == 0 ? size : kKept * mean + (1 - kKept) * size;
}

Check::Check(std::string name, std::vector<Stat> stats)
    : name_(std::move(name)), stats_(std::move(stats)) {
  if (stats_.empty()) throw std::invalid_argument("rule " + name_ + " has no statistics");
}

bool Check::looks_at(Stat stat) const {
  return std::find(stats_.begin(), stats_.end(), stat) != stats_.end();
}

std::string_view comparison_text(double value, bool is_above) {
  if (value < 0) return is_above ? "has a size above" : "has a size below";
  return is_above ? "is above" : "is below";
}

std::string_view history_text(Stat stat) {
  const bool has_sign = stat == Stat::mean || stat == Stat::min || stat == Stat::max;
  return has_sign ? "the mean size of its history" : "the mean of its history";
}

std::string series_text(const Series& series) {
  std::string text = series.kind + " " + (series.name.empty() ? "(root)" : series.name);
  if (!series.element.empty()) text += " " + series.element;
  return text;
}

std::string non_finite_text(const Series& series, const RowState& state) {
  std::string text = series_text(series) + ":";
  const auto part = [&text](std::int64_t count, const char* what) {
    if (count > 0) text += " " + grouped(count) + " " + what;
  };
  part(state.nans, "NaN");
  part(state.pos_infs, "+Inf");
  part(state.neg_infs, "-Inf");
  if (state.is_estimate()) text += " in a sample";
  return text + " of " + grouped(state.count) + " elements";
}

}  // namespace trainmon
