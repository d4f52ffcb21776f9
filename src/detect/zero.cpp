// A layer that was cut off has gradients of exact zeros from then on. An expert that no token
// chose has them now and then. So three steps in a row are asked for, and it is never called
// certain.
#include "detect/checks.h"

namespace trainmon::detect {
namespace {

constexpr int kBefore = 10;
constexpr int kAfter = 3;

}  // namespace

void ZeroGradients::check(const Window& window, Findings& found) {
  for (const Observation& one : window.now.all()) {
    if (one.quantity != Quantity::grad_reduced) continue;
    found.checked(Check::zero);
    Seen& seen = seen_[{one.rank, one.tensor}];
    if (one.absmax != 0.0 || !one.is_finite) {
      seen = {seen.zero == 0 ? seen.non_zero + 1 : 1, 0, 0};
      continue;
    }
    if (seen.zero == 0) seen.since = window.now.step;
    ++seen.zero;
    if (seen.non_zero < kBefore || seen.zero != kAfter) continue;
    Finding finding =
        window.notice(Check::zero, Stage::grad_reduced, one.rank, seen.since, {one.tensor});
    finding.text =
        "the gradient is zero in three steps in a row, after steps in which it never was";
    found.add(std::move(finding));
  }
}

}  // namespace trainmon::detect
