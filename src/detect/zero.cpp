// A layer that was cut off has gradients of exact zeros from then on. An expert that no token
// chose has them now and then. So three steps in a row are asked for, and it is never called
// certain.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

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
      seen.non_zero = seen.zero == 0 ? seen.non_zero + 1 : 1;
      seen.longest = std::max(seen.longest, std::exchange(seen.zero, 0));
      seen.is_said = false;
      ++seen.ever;
      continue;
    }
    if (seen.zero++ == 0) {
      seen.since = window.now.step;
      seen.restart = window.now.restart;
    }
    if (seen.non_zero < kBefore || seen.zero != kAfter) continue;
    seen.is_said = true;
    Finding finding =
        window.notice(Check::zero, Stage::grad_reduced, one.rank, seen.since, {one.tensor});
    finding.text =
        "the gradient is zero in three steps in a row, after steps in which it never was";
    found.add(std::move(finding));
  }
}

void ZeroGradients::end(Findings& found) const {
  constexpr int kLong = 48;
  constexpr int kTimesLongest = 4;
  std::map<std::tuple<std::int32_t, std::int64_t, std::int32_t>, std::vector<std::uint32_t>> all;
  for (const auto& [place, seen] : seen_) {
    const bool is_long = seen.zero >= std::max(kLong, kTimesLongest * seen.longest);
    if (!is_long || seen.is_said || seen.ever < kBefore) continue;
    all[{seen.restart, seen.since, place.first}].push_back(place.second);
  }
  for (auto& [place, tensors] : all) {
    Finding one;
    std::int32_t rank = 0;
    std::tie(one.restart, one.step, rank) = place;
    one.check = Check::zero;
    one.stage = Stage::grad_reduced;
    one.ranks = {rank};
    one.tensors = std::move(tensors);
    one.certain = false;
    one.text = "the gradient is zero from here on, and never was for so long before";
    found.add(std::move(one));
  }
}

}  // namespace trainmon::detect
