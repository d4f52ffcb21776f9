// One test of one value of a statistic against what is known of it.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainmon/rule.h"

namespace trainmon {

// What a statistic was so far; NaN and infinities never enter.
struct RunningMean {
  double mean = std::numeric_limits<double>::quiet_NaN();  // of |x|; NaN before the first
  std::int64_t values = 0;

  void add(double value);
};

// One statistic of one row, and what is known of it from before.
struct Judged {
  const Row& row;
  const Series& series;
  Stat stat;
  double value;
  const RunningMean& before;
};

class Check {
 public:
  Check(std::string name, std::vector<Stat> stats);
  virtual ~Check() = default;

  const std::string& name() const { return name_; }
  const std::vector<Stat>& stats() const { return stats_; }
  bool looks_at(Stat stat) const;
  virtual bool fires(const Judged& it) const = 0;
  // What is wrong, after the name of the statistic and its value: "is above the mean ...".
  virtual std::string complaint(const Judged& it) const = 0;

 private:
  std::string name_;
  std::vector<Stat> stats_;
};

std::unique_ptr<Check> make_check(const DeviationRule& rule);
std::unique_ptr<Check> make_check(const LimitRule& rule);
// A rule of these checks, in order: the first that fires for a statistic of a row is told. Throws
// std::invalid_argument for none.
std::unique_ptr<Rule> make_rule_of(std::vector<std::unique_ptr<Check>> checks,
                                   const Telling& telling);

// How a sentence speaks of a value that is compared by its size: "has a size above", "is above".
std::string_view comparison_text(double value, bool is_above);
// Of the running mean of a statistic, which is one of sizes: "the mean size of its history".
std::string_view history_text(Stat stat);
// "grad_reduced layers.3.weight", "actv (root) output".
std::string series_text(const Series& series);
// "grad_reduced fc.weight: 3 NaN of 12 elements".
std::string non_finite_text(const Series& series, const RowState& state);

}  // namespace trainmon
