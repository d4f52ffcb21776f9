#include "detect/stale_gradients.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace trainmon::detect {
namespace {

// The gradients of an optimizer beside those of the step before.
struct BesideBefore {
  bool are_equal = true;
  bool is_zero = true;
  bool has_moved = false;  // a weight, in the step before
  std::vector<std::uint32_t> tensors = {};
};

bool is_given(const StepEvidence& step, std::int32_t rank) {
  return std::ranges::any_of(step.inputs(), [&](const Input& one) { return one.rank == rank; });
}

}  // namespace

void StaleGradients::check(const Window& window, Findings& found) {
  check_uncleared(window, found);
  if (window.before == nullptr) return;
  std::map<Place, BesideBefore> all;
  std::set<std::int32_t> with_backwards;  // ranks of which `reduce` tells more
  for (const Observation& one : window.now.all()) {
    if (one.quantity == Quantity::grad_unreduced) with_backwards.insert(one.rank);
    if (one.quantity != Quantity::grad_reduced) continue;
    BesideBefore& compared = all[{one.rank, window.tensors[one.tensor].optimizer}];
    const Observation* const before =
        window.before->find(one.tensor, Quantity::grad_reduced, one.rank);
    compared.are_equal = compared.are_equal && before != nullptr && one.is_finite &&
                         are_comparable(*before, one) && are_equal(*before, one);
    compared.is_zero = compared.is_zero && one.absmax == 0.0;
    const Observation* const from =
        window.before->find(one.tensor, Quantity::weight_before, one.rank);
    const Observation* const to = window.before->find(one.tensor, Quantity::weight_after, one.rank);
    compared.has_moved |= from != nullptr && to != nullptr && !are_equal(*from, *to);
    compared.tensors.push_back(one.tensor);  // ascending
  }
  for (auto& [place, compared] : all) {
    if (!compared.are_equal) changed_.insert(place);
    const bool is_stale = compared.are_equal && !compared.is_zero && compared.has_moved;
    if (!is_stale || !changed_.contains(place) || with_backwards.contains(place.first)) continue;
    if (window.lossy.contains(place.first) || !said_.insert(place).second) continue;
    Finding one = window.notice(Check::reduce, Stage::grad_reduced, place.first, window.now.step,
                                compared.tensors);
    one.text = "the optimizer steps with the gradients of the step before, bit for bit";
    if (is_given(*window.before, place.first)) {
      one.text += is_given(window.now, place.first) ? ", though the model was called between"
                                                    : ": the model was not called between";
    }
    found.add(std::move(one));
  }
}

// One such step may be an accident of a loop that goes on after an exception.
void StaleGradients::check_uncleared(const Window& window, Findings& found) {
  constexpr int kSteps = 3;
  for (const Place& place : window.uncleared) {
    Uncleared& seen = uncleared_[place];
    if (seen.steps++ == 0) seen.since = window.now.step;
    if (seen.steps != kSteps) continue;
    Finding one = window.notice(Check::reduce, Stage::grad_reduced, place.first, seen.since,
                                window.reduced_of(place.first, place.second));
    one.text =
        "the gradients of the step before are not cleared: this step adds its own to them, and so "
        "do later ones";
    found.add(std::move(one));
  }
}

}  // namespace trainmon::detect
