// As of inputs: 24 steps in which one rank is above another in all are no chance. Gradients vary
// more with the data that a rank is given, so they must be apart by a factor.
#include "detect/gradient_ranges.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace trainmon::detect {

void GradientRanges::check(const Window& window, Findings& found) {
  constexpr std::int64_t kSteps = 24;
  constexpr double kFactor = 1.25;
  if (window.ranks.size() < 2) return;
  struct Sum {
    double squares = 0.0;
    std::uint64_t tensors = 0;
  };
  std::map<std::int32_t, std::map<std::int32_t, Sum>> sums;  // by optimizer, rank
  for (const Observation& one : window.now.all()) {
    if (one.quantity != Quantity::grad_unreduced || one.is_independent || !one.is_finite) continue;
    Sum& sum = sums[window.tensors[one.tensor].optimizer][one.rank];
    sum.squares += one.sum_sq;
    sum.tensors += mixed(one.tensor + 1);
  }
  for (const auto& [optimizer, ranks] : sums) {
    Run& run = runs_[optimizer];
    // Ranks that hold other tensors, or have other numbers of micro steps, are not alike.
    const auto has_same = [&](const auto& one) {
      return one.second.tensors == ranks.begin()->second.tensors;
    };
    const bool are_alike =
        ranks.size() == window.ranks.size() && std::ranges::all_of(ranks, has_same);
    run.has_ended = run.has_ended || !are_alike;
    if (run.has_ended) continue;
    if (run.steps++ == 0) run.since = window.now.step;
    for (const auto& [rank, sum] : ranks) run.ranges.add(rank, std::sqrt(sum.squares));
    const std::vector<std::int32_t> apart = run.ranges.apart(kFactor);
    run.has_ended = apart.empty() || run.steps == kSteps;
    if (apart.empty() || run.steps < kSteps) continue;
    Finding one = window.notice(Check::reduce, Stage::grad_unreduced, apart.front(), run.since);
    one.ranks = apart;
    one.text =
        "gradients of another size than on other ranks, before their reduction: their norm "
        "is " +
        run.ranges.text(apart) + " in these " + std::to_string(kSteps) +
        " steps. The loss or the data may be others";
    found.add(std::move(one));
  }
}

}  // namespace trainmon::detect
