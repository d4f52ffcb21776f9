// Wrappers bring weights together when they are made, and neither moments nor counted steps.
#include "detect/start_steps.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"

namespace trainmon::detect {
namespace {

// Of one quantity, the tensors that all ranks have.
struct Compared {
  std::vector<std::uint32_t> apart;
  bool must_be_same = true;  // all that are apart
  std::size_t same = 0;
};

Compared held_of(const Window& window, Quantity quantity) {
  Compared held;
  for (const std::uint32_t tensor : window.now.tensors()) {
    const auto ranks = window.now.of(tensor, quantity);
    const auto fits = [&](const Observation* one) {
      return (one->is_replicated || one->is_independent) && are_comparable(*one, *ranks.front());
    };
    if (ranks.size() < 2 || !std::ranges::all_of(ranks, fits)) continue;
    if (are_all_equal(ranks)) {
      ++held.same;
    } else {
      held.apart.push_back(tensor);
      held.must_be_same = held.must_be_same && are_replicas(ranks);
    }
  }
  return held;
}

std::string began_text(const std::map<std::int32_t, std::int64_t>& steps) {
  std::map<std::int64_t, std::vector<std::int32_t>> of_step;
  for (const auto& [rank, step] : steps) of_step[step].push_back(rank);
  std::string text;
  for (const auto& [step, ranks] : of_step) {
    text += (text.empty() ? "step " : ", step ") + std::to_string(step) + " on rank " +
            std::to_string(ranks.front());
    if (ranks.size() > 1) text += " and " + std::to_string(ranks.size() - 1) + " more";
  }
  return text;
}

// The ranks that did not begin with most: one of all where no step is that of most.
void name_ranks(const std::map<std::int32_t, std::int64_t>& steps, Finding& finding) {
  std::map<std::int64_t, std::size_t> counts;
  for (const auto& [rank, step] : steps) ++counts[step];
  const auto most =
      std::ranges::max_element(counts, {}, [](const auto& one) { return one.second; });
  finding.is_one_of_ranks = 2 * most->second <= steps.size();
  finding.ranks.clear();
  for (const auto& [rank, step] : steps) {
    if (finding.is_one_of_ranks || step != most->first) finding.ranks.push_back(rank);
  }
}

}  // namespace

void StartSteps::check(const Window& window, Findings& found) {
  confirm(window, found);
  const auto known = began_.find(window.now.restart);
  if (known == began_.end()) return;
  const Began began = std::move(known->second);
  began_.erase(known);
  const auto is_related = [](const Observation& one) { return !one.is_independent; };
  if (!began.are_aligned && std::ranges::none_of(window.now.all(), is_related)) return;
  Finding finding = window.finding(Check::replicas, Stage::start, 0);
  finding.certain = false;
  name_ranks(began.steps, finding);
  finding.text = "ranks began this start at different steps: " + began_text(began.steps);
  if (!began.are_aligned) return found.add(std::move(finding));
  found.checked(Check::replicas);
  finding.text += "; all are shown from step " + std::to_string(window.now.step) + " on";
  std::string what;
  const auto add = [&](const char* name, std::initializer_list<Quantity> quantities) {
    for (const Quantity quantity : quantities) {
      if (held_of(window, quantity).apart.empty()) continue;
      what += (what.empty() ? "" : ", ") + std::string(name);
      return;
    }
  };
  add("weights before the step", {Quantity::weight_before});
  add("moments", {Quantity::exp_avg, Quantity::exp_avg_sq, Quantity::momentum_buffer});
  Compared after = held_of(window, Quantity::weight_after);
  if (what.empty() && !after.apart.empty()) what = "weights after the step";
  finding.text += what.empty() ? ". Weights and moments are the same" : ". They differ in " + what;
  finding.tensors = after.apart;
  finding.evidence =
      window.now.all().front().fingerprint ? Evidence::fingerprints : Evidence::statistics;
  const Compared gradients = held_of(window, Quantity::grad_reduced);
  const bool steps_alike = gradients.same > 1 && gradients.same > gradients.apart.size();
  if (steps_alike && !after.apart.empty() && after.must_be_same) said_ = finding;
  found.add(std::move(finding));
}

// What brings weights together by itself, as a server that steps for all, does it before the next
// step.
void StartSteps::confirm(const Window& window, Findings& found) {
  const std::optional<Finding> said = std::exchange(said_, std::nullopt);
  if (!said || said->restart != window.now.restart || said->step + 1 != window.now.step) return;
  const Compared weights = held_of(window, Quantity::weight_before);
  if (!weights.apart.empty() && weights.must_be_same) found.confirm(*said);
}

}  // namespace trainmon::detect
