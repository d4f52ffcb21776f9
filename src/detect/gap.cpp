// Weights may change in the optimizer's step alone. State and fingerprint of a row are functions of
// the elements, the same for any thread and instruction set: so another one is another tensor.
// Programs change weights, too. What looks so is noticed, and not certain.
#include <algorithm>
#include <map>

#include "detect/checks.h"

namespace trainmon::detect {
namespace {

bool are_replicas_of_one(const std::vector<const Observation*>& ranks) {
  return std::ranges::all_of(ranks, [&](const Observation* one) {
    return one->is_replicated && are_equal(*one, *ranks.front());
  });
}

// Whether all ranks held one tensor and hold another one, which is the same on all: they did the
// same to it.
bool is_alike_on_ranks(const Window& window, std::uint32_t tensor) {
  const auto now = window.now.of(tensor, Quantity::weight_before);
  const auto before = window.before->of(tensor, Quantity::weight_after);
  return now.size() > 1 && now.size() == window.ranks.size() && before.size() == now.size() &&
         are_replicas_of_one(now) && are_replicas_of_one(before);
}

}  // namespace

void Gaps::check(const Window& window, Findings& found) {
  if (window.before == nullptr) return;
  std::map<std::int32_t, OfRank> ranks;
  std::vector<Changed> changed;
  for (const Observation& after : window.before->all()) {
    if (after.quantity != Quantity::weight_after) continue;
    const Observation* const before =
        window.now.find(after.tensor, Quantity::weight_before, after.rank);
    if (before == nullptr || before->forward_changes || window.has_edit(after, *before)) continue;
    if (!are_comparable(after, *before)) continue;
    if (before->dtype != after.dtype) continue;  // other bits say the same, as after .double()
    const Evidence evidence = evidence_of_bits({&after, before});
    found.checked(Check::gap, evidence);
    OfRank& rank = ranks[after.rank];
    ++rank.compared;
    const bool holds = are_equal(after, *before);
    rank.changed += holds ? 0 : 1;
    auto one = window.result(Check::gap, Stage::weights, *before, holds);
    if (!one) continue;
    one->evidence = evidence;
    changed.push_back({before, &after, std::move(*one)});
  }
  std::set<std::pair<std::int32_t, std::uint32_t>> said;
  for (Changed& one : changed) {
    const std::string why = reason(window, one, ranks[one.after->rank]);
    one.finding.text =
        "the weights are not those that the step before left: they changed between two steps of "
        "the optimizer";
    if (!why.empty()) {
      const std::pair place(one.after->rank, one.after->tensor);
      if (said_.contains(place)) continue;
      said.insert(place);
      one.finding.certain = false;
      one.finding.text += "; " + why;
    }
    found.add(std::move(one.finding));
  }
  said_.merge(said);
}

std::string Gaps::reason(const Window& window, const Changed& one, const OfRank& rank) const {
  std::string own = window.why_own(*window.before, *one.after);
  if (!own.empty()) return own;
  if (may_be_reordered(*one.before, *one.after)) {
    return "only the last bits of their sums did, as where their elements lie in another order";
  }
  if (rank.changed > 1 && 2 * rank.changed > rank.compared) {
    return "most weights did so at once, as where a program loads or averages them";
  }
  if (is_alike_on_ranks(window, one.after->tensor)) {
    return "all ranks did the same to them, as a program does";
  }
  return "";
}

}  // namespace trainmon::detect
