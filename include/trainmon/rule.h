// Alert rules: look at every batch on the writer thread before the sinks do.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

class Rule {
 public:
  virtual ~Rule() = default;
  virtual std::string_view name() const = 0;
  // Appends what this batch gives rise to. Called with complete rows only, from one thread.
  virtual void look(const RecordBatch& batch, const SeriesTable& series,
                    std::vector<Alert>& alerts) = 0;
  // Called before the first look(), once for each rule that this one replaces in a run that goes
  // on. What it remembers may be taken over. Same thread.
  virtual void keep_history_of(const Rule& /*earlier*/) {}
};

// How rules of statistics tell what they find.
//   every = false  one alert at first for each (series, rule, stat), then one whenever their number
//                  has doubled
//   every = true   each is an alert of its own, up to `most_per_step` for each optimizer and
//                  window. What a batch holds beyond is counted in one more
struct Telling {
  bool every = false;
  int most_per_step = 1000;
};

// Compares |x| of a statistic with a, the running mean of what it was before. First a is |x| of the
// first value, afterwards a <- 0.99 a + 0.01 |x|. Fires beyond a (1 + deviation), and below
// a (1 - deviation), which a deviation of 1 or more never reaches. `warmup` values (one at least)
// must be known. NaN and infinities are neither compared nor averaged: rules of limits are for
// those.
// A history belongs to a statistic of (series, accum, call). Calls and accums above 255 share one.
// So does a series' rest once 262,144 histories are kept.
struct DeviationRule {
  double deviation = 0.5;
  std::vector<Stat> stats = {Stat::norm, Stat::mean};
  int warmup = 10;
  std::string name = "deviation";
};

// Fires when a statistic is NaN or infinite, or |x| > limit. Tensors without elements never do.
struct LimitRule {
  std::optional<double> limit;
  std::vector<Stat> stats = {Stat::norm, Stat::mean};
  std::string name = "limit";
};

// All throw std::invalid_argument for a deviation, limit or warmup that is negative or NaN, and for
// an empty list.
std::unique_ptr<Rule> make_deviation_rule(const DeviationRule& rule, const Telling& telling = {});
std::unique_ptr<Rule> make_limit_rule(const LimitRule& rule, const Telling& telling = {});
// Several rules in order, each for its own statistics: where more than one fires for the same row
// and statistic, the first is told. They share histories.
using StatisticRule = std::variant<DeviationRule, LimitRule>;
std::unique_ptr<Rule> make_first_of_rule(const std::vector<StatisticRule>& rules,
                                         const Telling& telling = {});

}  // namespace trainmon
