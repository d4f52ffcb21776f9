// What a check found, and how findings become one verdict.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "detect/evidence.h"

namespace trainmon::detect {

enum class Check : std::uint8_t {
  finite,
  start,
  input,
  present,
  gap,
  replicas,
  reduce,
  exp_avg,
  exp_avg_sq,
  update,
  zero,
  config,
  norm,
  recompute,
  canary,
};
inline constexpr int kChecks = 15;
std::string_view check_name(Check check);
// Whether a check has this name.
bool is_check(std::string_view name);

// In the order in which a step is executed.
enum class Stage : std::uint8_t {
  start,
  input,
  weights,
  forward,
  loss,
  grad_unreduced,
  grad_reduced,
  moments,
  update,
};
std::string_view stage_name(Stage stage);
// That in which a quantity is measured.
Stage stage_of(Quantity quantity);

struct Finding {
  std::int32_t restart = 0;
  std::int64_t step = 0;
  Check check = Check::finite;
  Stage stage = Stage::start;
  std::vector<std::int32_t> ranks;     // all that the evidence cannot tell apart, ascending
  bool is_one_of_ranks = false;        // not all of them are wrong
  std::vector<std::uint32_t> tensors;  // likewise; empty: all, or none in particular
  double value = 0.0;  // of the tensor that is furthest beyond its bound; 0 of exact checks
  double bound = 0.0;  // what rounding explains
  Evidence evidence = Evidence::statistics;
  bool certain = true;
  std::string text;  // what is not as it must be, without place
};

// A tensor as people write it: "(root) input.0".
std::string tensor_text(const Tensor& tensor);
// What a finding names, as people write it: all tensors, or a few and how many more.
std::string tensors_text(const std::vector<Tensor>& tensors, const Finding& finding);
// "off by 0.1, rounding explains 1e-06"; empty of exact checks.
std::string bound_text(const Finding& finding);

// Gathers findings; those of one step, check, stage and set of ranks are one.
class Findings {
 public:
  // Beyond so many only counts go on: what follows a fault is its consequence.
  static constexpr std::size_t kMost = 200;

  void add(Finding&& finding);
  // After a step: findings of one step that differ in their ranks alone become one.
  void join_ranks();
  // Of one rank, that this finding, as it was added, is not certain after all: what came later
  // explains it, of all its tensors. `text` is what it says instead.
  void doubt(const Finding& finding, std::int32_t rank, std::string text);
  // A finding of an earlier step is certain after all.
  void confirm(const Finding& finding);
  // That a check was made of one tensor, or of so many.
  void checked(Check check, Evidence evidence = Evidence::statistics, std::int64_t tensors = 1) {
    if (tensors > 0) checked_[{check, evidence}] += tensors;
  }
  // That a check could not be made of one tensor, and why.
  void not_checked(Check check, std::string_view why) { ++not_checked_[{check, std::string(why)}]; }
  std::int64_t count_of(Check check) const;
  std::int64_t count_of(Check check, Evidence evidence) const;
  // How often, by check and reason.
  using Counts = std::map<std::pair<Check, std::string>, std::int64_t>;
  const Counts& not_checked() const { return not_checked_; }
  const std::vector<Finding>& all() const { return all_; }
  // All of them, and there is room again.
  std::vector<Finding> take() { return std::exchange(all_, {}); }
  std::int64_t left_out() const { return left_out_; }

  // The first certain finding: by step, then by stage; of one stage those of an equation, which
  // tell the rank, before `replicas`. nullopt without any.
  std::optional<std::size_t> verdict() const;

 private:
  using Step = std::pair<std::int32_t, std::int64_t>;  // restart, step
  void join_ranks_of(const Step& step);

  std::vector<Finding> all_;
  std::set<Step> changed_;  // steps of which there is more since ranks were joined
  std::map<std::pair<Check, Evidence>, std::int64_t> checked_;
  Counts not_checked_;
  std::int64_t left_out_ = 0;
};

}  // namespace trainmon::detect
