// Weights may change in the optimizer's step alone. State and fingerprint of a row are functions of
// the elements, the same for any thread and instruction set: so another one is another tensor.
// Programs change weights, too. What looks so is noticed, and not certain.
#include <algorithm>
#include <map>

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
  note_moves(window);
  if (window.before == nullptr) return;
  std::map<std::int32_t, OfRank> ranks;
  std::vector<Changed> changed;
  for (const Observation& after : window.before->all()) {
    if (after.quantity != Quantity::weight_after) continue;
    const Observation* const before =
        window.now.find(after.tensor, Quantity::weight_before, after.rank);
    if (before == nullptr || before->forward_changes || window.has_edit(after, *before)) continue;
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
  const bool has_gradients = std::ranges::any_of(window.before->all(), is_gradient);
  if (has_gradients && !has_gradient(*window.before, *one.after)) {
    return "they have no gradient, and the training may copy or average into them";
  }
  if (!has_moved(*one.after)) {
    return "no step of the optimizer has moved them so far, and the training may do it by itself";
  }
  if (rank.changed > 1 && 2 * rank.changed > rank.compared) {
    return "most weights did so at once, as where a program loads or averages them";
  }
  if (is_alike_on_ranks(window, one.after->tensor)) {
    return "all ranks did the same to them, as a program does";
  }
  return "";
}

bool Gaps::has_moved(const Observation& one) const {
  const auto rank = moved_.find(one.rank);
  return rank != moved_.end() && one.tensor < rank->second.size() && rank->second[one.tensor];
}

void Gaps::note_moves(const Window& window) {
  // The step before: this one's weights are what is being checked.
  if (window.before == nullptr) return;
  for (const Observation& after : window.before->all()) {
    if (after.quantity != Quantity::weight_after || has_moved(after)) continue;
    const Observation* const before =
        window.before->find(after.tensor, Quantity::weight_before, after.rank);
    if (before == nullptr || are_equal(*before, after)) continue;
    std::vector<bool>& moved = moved_[after.rank];
    if (moved.size() <= after.tensor) moved.resize(after.tensor + 1);
    moved[after.tensor] = true;
  }
}

}  // namespace trainmon::detect
