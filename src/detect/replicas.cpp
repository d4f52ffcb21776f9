// Equal fingerprints are equal elements, and equal digests are equal states. With three ranks or
// more the majority tells who is wrong.
#include <algorithm>

#include "detect/checks.h"

namespace trainmon::detect {
namespace {

Stage stage_of(Quantity quantity) {
  switch (quantity) {
    case Quantity::weight_before:
      return Stage::weights;
    case Quantity::grad_unreduced:
      return Stage::grad_unreduced;
    case Quantity::grad_reduced:
      return Stage::grad_reduced;
    case Quantity::exp_avg:
    case Quantity::exp_avg_sq:
    case Quantity::momentum_buffer:
      return Stage::moments;
    case Quantity::weight_after:
      return Stage::update;
  }
  return Stage::update;
}

bool are_all_equal(const std::vector<const Observation*>& ranks) {
  return std::ranges::all_of(
      ranks, [&](const Observation* one) { return are_equal(*one, *ranks.front()); });
}

bool are_replicas(const std::vector<const Observation*>& ranks) {
  return ranks.size() > 1 && std::ranges::all_of(ranks, &Observation::is_replicated);
}

// Those outside the largest group of equals; all where no group is larger than the others together.
std::vector<std::int32_t> odd_ones(const std::vector<const Observation*>& ranks,
                                   Evidence evidence) {
  const auto bits = [&](const Observation* one) {
    return evidence == Evidence::fingerprints ? *one->fingerprint : one->digest;
  };
  std::map<std::uint64_t, std::vector<std::int32_t>> groups;
  for (const Observation* one : ranks) groups[bits(one)].push_back(one->rank);
  const auto largest =
      std::ranges::max_element(groups, {}, [](const auto& group) { return group.second.size(); });
  std::vector<std::int32_t> odd;
  const bool is_majority = 2 * largest->second.size() > ranks.size();
  for (const Observation* one : ranks) {
    if (!is_majority || bits(one) != largest->first) odd.push_back(one->rank);
  }
  return odd;
}

}  // namespace

void check_replicas(const Window& window, Findings& found) {
  const std::vector<Observation>& all = window.now.all();
  for (std::size_t i = 0; i < all.size();) {
    const std::vector<const Observation*> ranks = window.now.of(all[i].tensor, all[i].quantity);
    const Observation& first = all[i];
    i += ranks.size();
    if (!are_replicas(ranks)) continue;
    const Evidence evidence = evidence_of_bits(ranks);
    const bool holds = are_all_equal(ranks);
    found.checked(Check::replicas, evidence);
    if (window.before != nullptr && !holds) {
      const auto earlier = window.before->of(first.tensor, first.quantity);
      if (are_replicas(earlier) && !are_all_equal(earlier)) continue;  // said before
    }
    auto one = window.result(Check::replicas, stage_of(first.quantity), first, holds);
    if (!one) continue;
    one->ranks = odd_ones(ranks, evidence);
    one->evidence = evidence;
    one->text = std::string(quantity_name(first.quantity)) +
                " differs between ranks that must hold the same";
    found.add(std::move(*one));
  }
}

}  // namespace trainmon::detect
