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
  Places ended, far;
  for (const Observation& now : window.now.all()) {
    if (now.quantity != Quantity::weight_before || !trained.contains(now.rank)) continue;
    const Observation* const before = window.before->find(now.tensor, now.quantity, now.rank);
    const bool is_told = before != nullptr && !has_gradient_of(*window.before, *before) &&
                         !is_stepped(*window.before, *before) && !before->sketch.empty() &&
                         !now.sketch.empty() && !window.has_edit(*before, now);
    if (!is_told) continue;
    OfWeight& weight = weights_[{now.rank, now.tensor}];
    if (are_equal(*before, now)) {
      if (weight.changes.note_still(window.before->step)) {
        ended[{weight.changes.since(), now.rank}].push_back(now.tensor);
      }
      continue;
    }
    weight.changes.note_change();
    Linear change = now.linear(Evidence::sketches);
    change.add(-1.0, before->linear(Evidence::sketches));
    const double size = change.norm();
    if (weight.sizes.size() == kChangesBefore) {
      OfRank& rank = ranks[now.rank];
      ++rank.known;
      if (size > kTimesLargest * *std::ranges::max_element(weight.sizes)) {
        rank.far.push_back(now.tensor);
      }
      weight.sizes.pop_front();
    }
    weight.sizes.push_back(size);
  }
  for (auto& [number, rank] : ranks) {
    // One may begin to move by itself.
    if (2 * rank.far.size() <= rank.known || !said_.insert(number).second) continue;
    far[{window.before->step, number}] = std::move(rank.far);
  }
  report(window, far,
         "weights without a gradient, which the training changes by itself, changed more than "
         "three times as much as in any of the 16 steps before",
         found);
  report(window, ended,
         "weights without a gradient, which the training changed by itself behind each of 48 steps "
         "and more, do not change any more",
         found);
}

void OwnChanges::begin() {
  said_.clear();
  for (auto& [place, weight] : weights_) {
    weight.sizes.clear();
    weight.changes.forget_still();
  }
}

void OwnChanges::report(const Window& window, const Places& places, const char* text,
                        Findings& found) {
  for (const auto& [place, tensors] : places) {
    Finding one = window.notice(Check::gap, Stage::weights, place.second, place.first, tensors);
    one.evidence = Evidence::sketches;
    one.text = text;
    found.add(std::move(one));
  }
}

}  // namespace trainmon::detect
