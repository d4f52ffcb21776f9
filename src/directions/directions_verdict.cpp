// Quotients of counts are compared by cross-multiplying: 0.97 and 0.03 are no doubles.
#include "directions/directions_verdict.h"

#include <algorithm>
#include <optional>

namespace trainmon {
namespace {

// Counts of elements in memory are far below 2^50, so that no product of two and 100 overflows.
__extension__ using Wide = __int128;

bool is_below_97_of_100(const Agreement& a) {
  return Wide{100} * a.equal < Wide{97} * a.elements;
}

bool dropped_by_more_than_3_of_100(const Agreement& before, const Agreement& here) {
  const Wide drop = Wide{before.equal} * here.elements - Wide{here.equal} * before.elements;
  return 100 * drop > 3 * (Wide{before.elements} * here.elements);
}

std::optional<Suspicion> first_bad(std::size_t parameter, const std::vector<std::int64_t>& steps,
                                   const std::vector<Agreement>& agreements) {
  const Agreement* before = nullptr;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Agreement& here = agreements[i];
    if (here.elements <= 0) continue;  // not compared, or nothing in it
    if (before == nullptr && is_below_97_of_100(here)) {
      return Suspicion{parameter, steps[i], DirectionRule::first_step, here, {}};
    }
    if (before != nullptr && dropped_by_more_than_3_of_100(*before, here)) {
      return Suspicion{parameter, steps[i], DirectionRule::drop, here, *before};
    }
    before = &here;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Suspicion> suspicions(const std::vector<std::int64_t>& steps,
                                  const std::vector<std::vector<Agreement>>& agreements) {
  std::vector<Suspicion> found;
  for (std::size_t parameter = agreements.size(); parameter-- > 0;) {
    if (const auto bad = first_bad(parameter, steps, agreements[parameter])) found.push_back(*bad);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Suspicion& a, const Suspicion& b) { return a.step < b.step; });
  return found;
}

}  // namespace trainmon
