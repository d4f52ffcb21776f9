// Weights that are drawn at random are equal nowhere. Where two tensors are, one was copied from
// the other, or both were drawn from the same state of a generator. That may be meant.
#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "detect/checks.h"

namespace trainmon::detect {

void check_start(const Window& window, Findings& found) {
  using Elements = std::tuple<std::int32_t, std::uint64_t, double>;  // of a rank; digest, count
  std::map<Elements, std::vector<const Observation*>> alike;
  for (const Observation& one : window.now.all()) {
    if (one.quantity != Quantity::weight_before || !one.is_finite) continue;
    found.checked(Check::start, one.fingerprint ? Evidence::fingerprints : Evidence::statistics);
    if (one.is_constant()) continue;
    alike[{one.rank, one.digest, one.count}].push_back(&one);
  }
  for (auto& [elements, group] : alike) {
    const Observation& first = *group.front();
    std::erase_if(group, [&](const Observation* one) { return !are_equal(first, *one); });
    if (group.size() < 2) continue;
    Finding finding = window.finding(Check::start, Stage::start, first.rank);
    for (const Observation* const one : group) finding.tensors.push_back(one->tensor);
    std::ranges::sort(finding.tensors);
    finding.evidence = evidence_of_bits(group);
    finding.certain = false;
    finding.text = "each of these weights is equal to another of them in the first step";
    found.add(std::move(finding));
  }
}

}  // namespace trainmon::detect
