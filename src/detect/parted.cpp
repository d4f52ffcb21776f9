// A rank that gives up a backward on which others step is a step behind from then on. What ranks
// have of one step is of two backwards then, so nothing of it is compared.
#include <algorithm>
#include <map>

#include "detect/checks.h"

namespace trainmon::detect {
namespace {

// Of each rank that has gradients in this step.
std::map<std::int32_t, std::int32_t> attempts_of(const StepEvidence& step) {
  std::map<std::int32_t, std::int32_t> attempts;
  for (const Observation& one : step.all()) {
    if (one.quantity != Quantity::grad_reduced) continue;
    std::int32_t& last = attempts.try_emplace(one.rank, one.attempt).first->second;
    last = std::max(last, one.attempt);
  }
  return attempts;
}

struct Alike {
  std::size_t same = 0, others = 0;
};

// How many of the gradients that ranks hold alike are the same on all.
Alike gradients_alike(const StepEvidence& step) {
  Alike alike;
  for (const std::uint32_t tensor : step.tensors()) {
    const auto ranks = step.of(tensor, Quantity::grad_reduced);
    if (are_replicas(ranks)) ++(are_all_equal(ranks) ? alike.same : alike.others);
  }
  return alike;
}

}  // namespace

bool Parted::check(const Window& window, Findings& found) {
  if (is_parted_) return true;
  if (window.ranks.size() < 2 || window.before == nullptr) return false;
  const std::map<std::int32_t, std::int32_t> attempts = attempts_of(window.now);
  if (attempts.size() < 2) return false;
  const auto [least, most] =
      std::ranges::minmax_element(attempts, {}, [](const auto& one) { return one.second; });
  if (least->second == most->second) return false;
  // A backward that a rank made for itself, without a step, leaves the gradients of the others.
  const Alike before = gradients_alike(*window.before);
  const Alike now = gradients_alike(window.now);
  is_parted_ = before.same > before.others && now.others > now.same;
  if (!is_parted_) return false;
  Finding one = window.finding(Check::update, Stage::update, most->first);
  one.ranks.clear();
  for (const auto& [rank, attempt] : attempts) {
    if (attempt > least->second) one.ranks.push_back(rank);
  }
  one.text =
      "the optimizer made no step behind a backward, but on other ranks it did; ranks that are at "
      "different steps are not compared";
  found.add(std::move(one));
  return true;
}

}  // namespace trainmon::detect
