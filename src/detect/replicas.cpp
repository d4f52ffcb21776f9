// Equal fingerprints are equal elements, and equal digests are equal states. With three ranks or
// more the majority tells who is wrong.
#include <algorithm>

#include "detect/checks.h"

namespace trainmon::detect {

namespace {

// The ranks whose weights changed between two steps, where all held the same after the one.
std::vector<std::int32_t> changed_ranks(const Window& window, std::uint32_t tensor) {
  std::vector<std::int32_t> changed;
  if (window.before == nullptr) return changed;
  const auto now = window.now.of(tensor, Quantity::weight_before);
  const auto before = window.before->of(tensor, Quantity::weight_after);
  if (now.size() != before.size() || !are_replicas(before) || !are_all_equal(before)) return {};
  for (std::size_t r = 0; r < now.size(); ++r) {
    const bool is_told = now[r]->rank == before[r]->rank && are_comparable(*before[r], *now[r]) &&
                         now[r]->dtype == before[r]->dtype;
    // Who was told of an edit may be right, and the others have missed it.
    if (!is_told || window.has_edit(*before[r], *now[r])) return {};
    if (!are_equal(*before[r], *now[r])) changed.push_back(now[r]->rank);
  }
  return changed;
}

constexpr const char* kSent =
    "; before the next step all held the same again, as where a program sends weights behind the "
    "step";

std::string ranks_text_of(const std::vector<std::int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (const std::int32_t rank : ranks) {
    text += (rank == ranks.front() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

}  // namespace

void name_odd_ranks(const std::vector<const Observation*>& ranks, Finding& finding) {
  const auto bits = [&](const Observation* one) {
    return finding.evidence == Evidence::fingerprints ? *one->fingerprint : one->digest;
  };
  std::map<std::uint64_t, std::size_t> groups;
  for (const Observation* one : ranks) ++groups[bits(one)];
  const auto largest =
      std::ranges::max_element(groups, {}, [](const auto& group) { return group.second; });
  finding.is_one_of_ranks = 2 * largest->second <= ranks.size();
  finding.ranks.clear();
  for (const Observation* one : ranks) {
    if (finding.is_one_of_ranks || bits(one) != largest->first) finding.ranks.push_back(one->rank);
  }
}

void Replicas::check(const Window& window, Findings& found) {
  doubt_sent(window, found);
  const std::vector<Observation>& all = window.now.all();
  for (std::size_t i = 0; i < all.size();) {
    const std::vector<const Observation*> ranks = window.now.of(all[i].tensor, all[i].quantity);
    if (are_replicas(ranks)) check(window, all[i], ranks, found);
    i += ranks.size();
  }
}

void Replicas::check(const Window& window, const Observation& first,
                     const std::vector<const Observation*>& ranks, Findings& found) {
  const Evidence evidence = evidence_of_bits(ranks);
  const bool holds = are_all_equal(ranks);
  found.checked(Check::replicas, evidence);
  if (window.before != nullptr && !holds) {
    const auto earlier = window.before->of(first.tensor, first.quantity);
    if (are_replicas(earlier) && !are_all_equal(earlier)) return;  // said before
  }
  auto one = window.result(Check::replicas, stage_of(first.quantity), first, holds);
  if (!one) return;
  one->evidence = evidence;
  name_odd_ranks(ranks, *one);
  one->text =
      std::string(quantity_name(first.quantity)) + " differs between ranks that must hold the same";
  const bool is_left = first.quantity == Quantity::weight_after;
  const bool is_weight = is_left || first.quantity == Quantity::weight_before;
  const std::string own =
      is_weight && window.before != nullptr ? window.why_own(*window.before, first) : "";
  const auto changed = is_weight && one->is_one_of_ranks ? changed_ranks(window, first.tensor)
                                                         : std::vector<std::int32_t>();
  if (!changed.empty() && changed.size() < ranks.size()) {
    one->ranks = changed;
    one->is_one_of_ranks = false;
    one->text += "; before this step they changed on " + ranks_text_of(changed) + " alone";
  }
  if (!own.empty()) {
    one->certain = false;
    one->text += "; " + own;
  }
  if (is_left && are_sent_) return;
  if (is_left) left_.push_back(*one);
  found.add(std::move(*one));
}

void Replicas::doubt_sent(const Window& window, Findings& found) {
  const std::vector<Finding> left = std::exchange(left_, {});
  if (window.before == nullptr || left.empty()) return;
  const bool are_same = std::ranges::all_of(left, [&](const Finding& one) {
    const auto now = window.now.of(one.tensors.front(), Quantity::weight_before);
    return now.size() > 1 && now.size() == window.ranks.size() && are_replicas(now) &&
           are_all_equal(now);
  });
  if (!are_same) return;
  are_sent_ = true;
  for (const Finding& one : left) {
    for (const std::int32_t rank : one.ranks) found.doubt(one, rank, one.text + kSent);
  }
}

}  // namespace trainmon::detect
