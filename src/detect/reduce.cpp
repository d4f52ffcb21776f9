// Each reduced gradient is held against the mean, and what is not the mean is told.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "detect/reduction.h"

namespace trainmon::detect {
namespace {

constexpr const char* kClippedAlone =
    "the reduced gradient is a part of the mean, the same on all ranks: it may be clipped by a "
    "limit "
    "of its own";
constexpr const char* kClippedByValue =
    "the reduced gradient has the largest element that others have, too: it may be clipped by "
    "value";

constexpr const char* kZeroed =
    "the reduced gradient is zero on all ranks, and the unreduced ones are not: a program may have "
    "set it to zero";
constexpr const char* kOfEarlier =
    "the reduced gradient is the mean of those of other backwards than the last one alone, which a "
    "program may have put aside";

bool are_alike(const std::vector<Off>& off) {
  return std::ranges::all_of(
      off, [&](const Off& one) { return are_equal(*one.reduced, *off.front().reduced); });
}

// The one rank whose gradient is what all lack; -1 where none is, or several could be.
std::int32_t missing_rank(const Window& window, const Reduction& one, const Observation& reduced,
                          const std::vector<Scale>& scales) {
  const double count = static_cast<double>(window.ranks.size());
  const auto contributions = one.contributions(window);
  std::int32_t rank = -1;
  for (const Scale& scale : scales) {
    Linear lacks;
    lacks.add(count, one.mean).add(-count / scale.factor, reduced.linear(one.evidence));
    const double bound = count * off_by(reduced, one, scale).bound / scale.factor;
    for (const auto& [of, given] : contributions) {
      const Linear left = Linear(lacks).add(-1.0, given);
      if (left.norm() > bound || rank == of) continue;
      if (rank >= 0) return -1;
      rank = of;
    }
  }
  return rank;
}

}  // namespace

// A tensor whose reduced gradients are not as they must be.
struct Reductions::Failed {
  const Reduction* reduction;
  std::vector<Off> off;
  Finding finding;
  bool is_on_all = false;       // alike on all ranks
  std::int32_t missing = -1;    // the rank whose contribution it lacks
  bool has_own_factor = false;  // below 1: clipped by a limit of its own
  bool is_of_earlier = false;   // the mean of another backward of the step
};

// `first` is the finding of the first rank.
Reductions::Failed Reductions::failed(const Window& window, const Reduction& one,
                                      std::vector<Off> off, const std::vector<Scale>& scales,
                                      const Finding& first) {
  Failed failed{&one, std::move(off), first};
  const Off& worst = *std::ranges::max_element(failed.off, {}, &Off::value);
  Finding& finding = failed.finding;
  finding.ranks.clear();
  finding.value = worst.value;
  finding.bound = worst.bound;
  finding.evidence = one.evidence;
  finding.text = kNotTheMean;
  for (const Off& each : failed.off) finding.ranks.push_back(each.reduced->rank);
  if (one.gathered) finding.ranks = one.gathered->holders;
  failed.is_on_all =
      one.gathered || (failed.off.size() == window.ranks.size() && are_alike(failed.off));
  failed.is_of_earlier = std::ranges::all_of(
      failed.off, [&](const Off& each) { return is_of_earlier(window, one, *each.reduced); });
  if (!failed.is_on_all) return failed;
  const Observation& reduced = *failed.off.front().reduced;
  failed.missing = missing_rank(window, one, reduced, scales);
  if (failed.missing >= 0) {
    finding.ranks = {failed.missing};
    finding.text =
        "the reduced gradient lacks the contribution of rank " + std::to_string(failed.missing);
    return failed;
  }
  const Scale own = own_scale(reduced, one);
  failed.has_own_factor = is_clipping(own.factor) && off_by(reduced, one, own).is_within();
  return failed;
}

// Whoever holds a shard of one tensor may be what is wrong with all of them.
void Reductions::name_holders(std::vector<Failed>& all) {
  const auto is_unknown = [](const Failed& one) {
    return one.reduction->gathered && one.missing < 0;
  };
  std::set<std::int32_t> holders;
  for (const Failed& one : all) {
    if (is_unknown(one)) holders.insert(one.finding.ranks.begin(), one.finding.ranks.end());
  }
  for (Failed& one : all) {
    if (is_unknown(one)) one.finding.ranks.assign(holders.begin(), holders.end());
  }
}

// What clips each tensor by a limit of its own, as adaptive clipping does, leaves the same on all
// ranks, and less. What clips by value leaves one largest element, in several tensors or steps.
void Reductions::report(std::vector<Failed>& all, Findings& found) {
  constexpr std::size_t kMostLimits = 256;
  const auto is_by_value = [](const Failed& one) {
    return one.is_on_all && one.missing < 0 && !one.has_own_factor;
  };
  double limit = 0.0;
  std::size_t by_value = 0;
  bool has_one_limit = true;
  for (const Failed& one : all) {
    if (!is_by_value(one)) continue;
    const double largest = one.off.front().reduced->absmax;
    has_one_limit = has_one_limit && (by_value++ == 0 || largest == limit);
    limit = largest;
  }
  const auto seen = limits_.find(limit);
  const bool is_clipped =
      has_one_limit && (by_value > 1 || (by_value == 1 && seen != limits_.end()));
  if (is_clipped && seen != limits_.end()) {
    for (const Finding& one : std::exchange(seen->second, {})) {
      for (const std::int32_t rank : one.ranks) found.doubt(one, rank, kClippedByValue);
    }
  } else if (has_one_limit && by_value == 1) {
    const auto one = std::ranges::find_if(all, is_by_value);
    if (one->finding.certain) limits_[limit].push_back(one->finding);
  }
  if (limits_.size() > kMostLimits) limits_.clear();
  const bool are_of_earlier = std::ranges::all_of(all, &Failed::is_of_earlier);
  for (Failed& one : all) {
    // One sum is nearly always a multiple of another one.
    const bool is_sum = one.reduction->evidence == Evidence::statistics;
    if (one.has_own_factor && is_sum) limits_.try_emplace(one.off.front().reduced->absmax);
    if (one.has_own_factor || are_of_earlier || (is_clipped && is_by_value(one))) {
      if (!said_.insert(one.reduction->tensor).second) continue;
      one.finding.certain = false;
      one.finding.text = are_of_earlier                           ? kOfEarlier
                         : one.off.front().reduced->absmax == 0.0 ? kZeroed
                         : one.has_own_factor                     ? kClippedAlone
                                                                  : kClippedByValue;
    }
    found.add(std::move(one.finding));
  }
}

void Reductions::check(const Window& window, Findings& found) {
  if (window.ranks.size() < 2) return;
  for (const auto& [optimizer, all] : reductions(window, micro_steps_)) {
    Group group{optimizer, all, {}};
    for (const Reduction& one : all) group.tensors.push_back(one.tensor);
    check(window, group, found);
  }
}

void Reductions::check(const Window& window, const Group& group, Findings& found) {
  std::vector<std::vector<Scale>> scales;
  std::vector<bool> are_meant;
  for (const std::int32_t rank : window.ranks) {
    scales.push_back(scales_of(scaled_of(window, group.all, rank)));
    are_meant.push_back(is_meant(window, group, rank, found));
  }
  // By the factor of most tensors, where it is that of most.
  struct Explained {
    int of = 0, by = 0;
    double squares = 0.0;
  };
  std::vector<Explained> explained(window.ranks.size());
  std::vector<Failed> all_failed;
  for (const Reduction& one : group.all) {
    std::vector<Off> off;
    std::optional<Finding> first;
    for (std::size_t r = 0; r < window.ranks.size(); ++r) {
      const Observation* const reduced = one.reduced(window, window.ranks[r]);
      if (reduced == nullptr) continue;
      ++explained[r].of;
      explained[r].by += off_by(*reduced, one, scales[r][1]).is_within() ? 1 : 0;
      explained[r].squares += reduced->sum_sq;
      // What was gathered is the same on all ranks.
      if (may_be_clipped_alone(*reduced, one) || (one.gathered && r > 0)) continue;
      found.checked(Check::reduce, one.evidence);
      if (are_meant[r]) continue;
      const Off nearest = nearest_of(*reduced, one, scales[r]);
      auto finding =
          window.result(Check::reduce, Stage::grad_reduced, *reduced, nearest.is_within());
      if (!finding) continue;
      off.push_back(nearest);
      if (!first || finding->certain) first = finding;
    }
    int& held = held_[one.tensor];
    if (off.empty()) {
      held = std::min(held + 1, kOften);
    } else if (first && held < kOften) {  // a filter begins with a step in which it does nothing
      first->certain = false;
      for (const std::int32_t rank : window.ranks) {
        window.held.doubt(Check::reduce, rank,
                          Held::place(Check::reduce, one.tensor, Quantity::grad_reduced));
      }
    }
    if (first) all_failed.push_back(failed(window, one, std::move(off), scales.front(), *first));
  }
  name_holders(all_failed);
  report(all_failed, found);
  std::int32_t last = 0;  // micro step
  for (const Reduction& one : group.all) {
    const auto rows = window.now.of(one.tensor, Quantity::grad_unreduced);
    for (const Observation* row : rows) last = std::max(last, row->accum);
  }
  const double backwards = last + 1.0;
  std::vector<Scaled> factors;
  for (std::size_t r = 0; r < window.ranks.size(); ++r) {
    const auto [of, by, squares] = explained[r];
    const Scale& scale = scales[r][1];
    const bool is_known = of > 1 && 2 * by > of;
    factors.push_back({scale.factor, scale.error, is_known ? std::sqrt(squares) : 0.0,
                       window.now.step, backwards});
  }
  check_factors(window, factors, group, found);
}

}  // namespace trainmon::detect
