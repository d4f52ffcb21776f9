// Weights may change in the optimizer's step alone. State and fingerprint of a row are functions of
// the elements, the same for any thread and instruction set: so another one is another tensor.
#include <algorithm>

#include "detect/checks.h"

namespace trainmon::detect {
namespace {

bool is_gradient(const Observation& one) {
  return one.quantity == Quantity::grad_reduced || one.quantity == Quantity::grad_unreduced;
}

// What has none while others have is no parameter that the optimizer trains: a target network, an
// average of weights.
bool has_gradient(const StepEvidence& step, const Observation& weight) {
  return step.find(weight.tensor, Quantity::grad_reduced, weight.rank) != nullptr ||
         step.find(weight.tensor, Quantity::grad_unreduced, weight.rank) != nullptr;
}

}  // namespace

void check_gap(const Window& window, Findings& found) {
  if (window.before == nullptr) return;
  const bool has_gradients = std::ranges::any_of(window.before->all(), is_gradient);
  for (const Observation& after : window.before->all()) {
    if (after.quantity != Quantity::weight_after) continue;
    const Observation* const before =
        window.now.find(after.tensor, Quantity::weight_before, after.rank);
    if (before == nullptr || window.has_edit(after, *before)) continue;
    const Evidence evidence = evidence_of_bits({&after, before});
    found.checked(Check::gap, evidence);
    auto one = window.result(Check::gap, Stage::weights, *before, are_equal(after, *before));
    if (!one) continue;
    one->evidence = evidence;
    one->text =
        "the weights are not those that the step before left: they changed between two steps of "
        "the optimizer";
    if (has_gradients && !has_gradient(*window.before, after)) {
      one->certain = false;
      one->text += "; they have no gradient, and the training may copy or average into them";
    }
    found.add(std::move(*one));
  }
}

}  // namespace trainmon::detect
