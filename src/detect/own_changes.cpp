#include "detect/own_changes.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace trainmon::detect {
namespace {

constexpr std::size_t kChangesBefore = 16;  // changes of one weight
constexpr double kTimesLargest = 3.0;       // times the largest of them

bool is_of_gradient(const Observation& one) {
  return one.quantity == Quantity::grad_reduced || one.quantity == Quantity::grad_unreduced;
}

// An optimizer may hold a weight whose gradient another rank has.
bool is_stepped(const StepEvidence& step, const Observation& before) {
  const Observation* const after = step.find(before.tensor, Quantity::weight_after, before.rank);
  return after != nullptr && !are_equal(before, *after);
}

bool has_gradient_of(const StepEvidence& step, const Observation& one) {
  return step.find(one.tensor, Quantity::grad_reduced, one.rank) != nullptr ||
         step.find(one.tensor, Quantity::grad_unreduced, one.rank) != nullptr;
}

}  // namespace

void OwnChanges::check(const Window& window, Findings& found) {
  if (window.before == nullptr) return;
  std::set<std::int32_t> trained;
  for (const Observation& one : window.before->all()) {
    if (is_of_gradient(one)) trained.insert(one.rank);
  }
  struct OfRank {
    std::size_t known = 0;  // weights that have a history
    std::vector<std::uint32_t> far;
  };
  std::map<std::int32_t, OfRank> ranks;
  for (const Observation& now : window.now.all()) {
    if (now.quantity != Quantity::weight_before || !trained.contains(now.rank)) continue;
    const Observation* const before = window.before->find(now.tensor, now.quantity, now.rank);
    const bool is_told = before != nullptr && !has_gradient_of(*window.before, *before) &&
                         !is_stepped(*window.before, *before) && !before->sketch.empty() &&
                         !now.sketch.empty() && !window.has_edit(*before, now);
    if (!is_told || are_equal(*before, now)) continue;
    Linear change = now.linear(Evidence::sketches);
    change.add(-1.0, before->linear(Evidence::sketches));
    std::deque<double>& sizes = sizes_[{now.rank, now.tensor}];
    const double size = change.norm();
    if (sizes.size() == kChangesBefore) {
      OfRank& rank = ranks[now.rank];
      ++rank.known;
      if (size > kTimesLargest * *std::ranges::max_element(sizes)) rank.far.push_back(now.tensor);
      sizes.pop_front();
    }
    sizes.push_back(size);
  }
  for (auto& [number, rank] : ranks) {
    // One may begin to move by itself.
    if (2 * rank.far.size() <= rank.known || !said_.insert(number).second) continue;
    Finding one =
        window.notice(Check::gap, Stage::weights, number, window.before->step, std::move(rank.far));
    one.evidence = Evidence::sketches;
    one.text =
        "weights without a gradient, which the training changes by itself, changed more than three "
        "times as much as in any of the 16 steps before";
    found.add(std::move(one));
  }
}

}  // namespace trainmon::detect
