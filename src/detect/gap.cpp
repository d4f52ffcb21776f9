// Weights may change in the optimizer's step alone. The state of a row is a function of the
// elements, the same for any thread and instruction set: so another state is another tensor.
#include "detect/checks.h"

namespace trainmon::detect {

void check_gap(const Window& window, Findings& found) {
  if (window.before == nullptr) return;
  for (const Observation& after : window.before->all()) {
    if (after.quantity != Quantity::weight_after) continue;
    const Observation* const before =
        window.now.find(after.tensor, Quantity::weight_before, after.rank);
    if (before == nullptr || window.has_edit(after, *before)) continue;
    found.checked(Check::gap);
    auto one = window.result(Check::gap, Stage::weights, *before, before->digest == after.digest);
    if (!one) continue;
    one->text =
        "the weights are not those that the step before left: they changed between two steps of "
        "the optimizer";
    found.add(std::move(*one));
  }
}

}  // namespace trainmon::detect
