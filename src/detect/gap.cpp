// Weights may change in the optimizer's step alone. State and fingerprint of a row are functions of
// the elements, the same for any thread and instruction set: so another one is another tensor.
#include "detect/checks.h"

namespace trainmon::detect {

void check_gap(const Window& window, Findings& found) {
  if (window.before == nullptr) return;
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
    found.add(std::move(*one));
  }
}

}  // namespace trainmon::detect
