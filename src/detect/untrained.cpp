// Each of these is told when it has gone on for some steps. A schedule may end with a rate of 0,
// one may begin with it, and a validation lies between two steps.
#include "detect/untrained.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"

namespace trainmon::detect {
namespace {

constexpr int kGoesOn = 3;
// Steps with a training forward before those without. More where nothing says that the model is
// in evaluation mode: rows of inputs may have been switched off. As many with gradients.
constexpr int kSeen = 3, kSeenUnsaid = 8;

bool is_non_zero(const Observation& gradient) {
  return gradient.is_finite && gradient.absmax > 0.0;
}

bool is_gradient(const Observation& one) {
  return one.quantity == Quantity::grad_reduced || one.quantity == Quantity::grad_unreduced;
}

// nullopt where rows do not tell.
std::optional<bool> has_moved(const StepEvidence& step, std::uint32_t tensor, std::int32_t rank) {
  const Observation* const from = step.find(tensor, Quantity::weight_before, rank);
  const Observation* const to = step.find(tensor, Quantity::weight_after, rank);
  if (from == nullptr || to == nullptr) return std::nullopt;
  return !are_equal(*from, *to);
}

bool has_moments(const StepEvidence& step, std::uint32_t tensor, std::int32_t rank) {
  return step.find(tensor, Quantity::exp_avg, rank) != nullptr ||
         step.find(tensor, Quantity::momentum_buffer, rank) != nullptr;
}

bool has_any_moments(const StepEvidence& step, std::int32_t rank) {
  return std::ranges::any_of(step.all(), [&](const Observation& one) {
    return one.rank == rank &&
           (one.quantity == Quantity::exp_avg || one.quantity == Quantity::momentum_buffer);
  });
}

// What a group of an optimizer does in a step.
struct Group {
  bool has_gradient = false;
  bool has_moved = false;
  std::vector<std::uint32_t> tensors;
};

Group group_of(const Window& window, std::int32_t rank, std::int32_t optimizer,
               std::int32_t number) {
  Group group;
  for (const std::uint32_t tensor : window.now.tensors()) {
    if (window.tensors[tensor].optimizer != optimizer) continue;
    // Without this row any group may have it.
    const Observation* const update = window.now.find(tensor, Quantity::update, rank);
    if (update != nullptr && update->group != number) continue;
    const Observation* const gradient = window.now.find(tensor, Quantity::grad_reduced, rank);
    if (gradient == nullptr || !is_non_zero(*gradient)) continue;
    group.has_gradient = true;
    group.has_moved |= has_moved(window.now, tensor, rank).value_or(false);
    group.tensors.push_back(tensor);
  }
  return group;
}

}  // namespace

void Untrained::check(const Window& window, Findings& found) {
  check_forwards(window, found);
  for (const std::int32_t rank : window.ranks) {
    if (window.lossy.contains(rank)) continue;
    check_steps(window, rank, found);
    check_gradients(window, rank, found);
  }
  check_rates(window, found);
}

void Untrained::check_forwards(const Window& window, Findings& found) {
  std::set<std::pair<std::int32_t, std::int32_t>> given, trained;
  std::map<std::int32_t, std::set<std::int32_t>> optimizers;  // with gradients, by rank
  for (const Input& one : window.now.inputs()) given.insert({one.rank, one.chunk});
  for (const Observation& one : window.now.all()) {
    if (is_gradient(one) && is_non_zero(one)) {
      trained.insert({one.rank, window.tensors[one.tensor].chunk});
      optimizers[one.rank].insert(window.tensors[one.tensor].optimizer);
    }
  }
  for (const auto& place : trained) {
    const std::int32_t rank = place.first;
    if (window.lossy.contains(rank)) continue;
    Forwards& seen = forwards_[place];
    // Inside a wrapper, which itself is in training mode.
    const bool is_inside = window.evaluated.contains({rank, -1 - place.second});
    if (given.contains(place) && !is_inside) {
      if (seen.without > 0) seen.optimizers.clear();
      seen.with = seen.without == 0 ? seen.with + 1 : 1;
      seen.without = seen.evaluated = 0;
      seen.optimizers.insert(optimizers[rank].begin(), optimizers[rank].end());
      continue;
    }
    // Inputs are counted with the steps of one optimizer, which may take fewer than another one.
    if (!std::ranges::includes(optimizers[rank], seen.optimizers)) continue;
    if (seen.without++ == 0) seen.since = window.now.step;
    seen.evaluated += is_inside || window.evaluated.contains(place) ? 1 : 0;
    const bool is_evaluation = seen.evaluated == seen.without;
    if (seen.is_said || seen.without < kGoesOn || seen.with < kSeen) continue;
    if (!is_evaluation && seen.with < kSeenUnsaid) continue;
    seen.is_said = true;
    Finding finding = window.notice(Check::input, Stage::forward, rank, seen.since);
    finding.text =
        is_evaluation
            ? "the model is called in evaluation mode from here on, though its optimizer goes on: "
              "no train() came after eval()"
            : "no training forward is seen from here on, though gradients and steps go on. The "
              "model is in evaluation mode, or it is called past what is watched";
    found.add(std::move(finding));
  }
}

void Untrained::check_steps(const Window& window, std::int32_t rank, Findings& found) {
  for (const std::uint32_t tensor : window.now.tensors()) {
    if (window.now.find(tensor, Quantity::update, rank) == nullptr) continue;
    Stepped& seen = stepped_[{rank, tensor}];
    seen.has_formula = true;
    seen.has_state = has_moments(window.now, tensor, rank);
    seen.still = 0;
  }
  const auto end = stepped_.lower_bound({rank + 1, 0});
  for (auto known = stepped_.lower_bound({rank, 0}); known != end; ++known) {
    const std::uint32_t tensor = known->first.second;
    Stepped& seen = known->second;
    if (seen.is_said || window.now.find(tensor, Quantity::update, rank) != nullptr) continue;
    const Observation* const gradient = window.now.find(tensor, Quantity::grad_reduced, rank);
    const bool stays = !has_moved(window.now, tensor, rank).value_or(true);
    if (gradient == nullptr || !is_non_zero(*gradient) || !stays) {
      seen.still = 0;
      continue;
    }
    // An optimizer that is not watched may step it after the last row of a step.
    const Observation& weight = *window.now.find(tensor, Quantity::weight_before, rank);
    if (seen.still > 0 && !are_equal(*seen.left, weight)) seen.still = 0;
    seen.left = weight;
    if (seen.still++ == 0) seen.since = window.now.step;
    if (seen.still < kGoesOn) continue;
    seen.is_said = true;
    // `present` has named it where moments of others go on.
    if (seen.has_state && has_any_moments(window.now, rank)) continue;
    Finding finding = window.notice(Check::update, Stage::update, rank, seen.since, {tensor});
    finding.evidence = evidence_of_bits({&weight});
    finding.text =
        "these have gradients, and no optimizer steps them any more, as where parameters were "
        "replaced and the optimizer keeps the old ones";
    found.add(std::move(finding));
  }
}

void Untrained::check_gradients(const Window& window, std::int32_t rank, Findings& found) {
  const Observation* gradient = nullptr;
  const Observation* weight = nullptr;
  bool stays = true;
  for (const Observation& one : window.now.all()) {
    if (one.rank != rank) continue;
    if (is_gradient(one)) gradient = &one;
    if (one.quantity != Quantity::weight_after) continue;
    weight = &one;
    stays = stays && !has_moved(window.now, one.tensor, rank).value_or(true);
  }
  if (gradient == nullptr && weight == nullptr) return;
  Gradients& seen = gradients_[rank];
  if (gradient != nullptr) {
    seen.with = seen.without == 0 ? seen.with + 1 : 1;
    seen.without = 0;
    seen.last = *gradient;
    return;
  }
  if (seen.with < kSeenUnsaid || seen.is_said) return;
  if (!stays || window.has_edit(*seen.last, *weight)) {
    seen.with = seen.without = 0;
    return;
  }
  if (seen.without++ == 0) seen.since = window.now.step;
  if (seen.without < kGoesOn) return;
  seen.is_said = true;
  Finding finding = window.notice(Check::present, Stage::grad_reduced, rank, seen.since);
  finding.text =
      "no parameter has a gradient any more when the optimizer steps, and no weight moves: "
      "gradients may be cleared before the step";
  found.add(std::move(finding));
}

void Untrained::check_rates(const Window& window, Findings& found) {
  for (const auto& [rank, optimizers] : window.declared) {
    // By its first step: what is said of the groups of an optimizer together.
    std::map<std::pair<std::int32_t, std::int64_t>, std::pair<Finding, std::string>> said;
    for (const auto& [optimizer, groups] : optimizers) {
      for (const auto& [number, values] : groups) {
        const std::optional<double> rate = value_of(values, "lr");
        if (!rate) continue;
        Rate& seen = rates_[{rank, optimizer, number}];
        if (*rate != 0.0) {
          seen.last = *rate;
          seen.zero = 0;
          continue;
        }
        if (seen.last == 0.0 || seen.is_said) continue;
        Group group = group_of(window, rank, optimizer, number);
        if (!group.has_gradient || group.has_moved) {
          seen.zero = 0;
          continue;
        }
        if (seen.zero++ == 0) seen.since = window.now.step;
        if (seen.zero < kGoesOn) continue;
        seen.is_said = true;
        auto& [finding, numbers] = said[{optimizer, seen.since}];
        if (numbers.empty()) {
          finding = window.notice(Check::config, Stage::update, rank, seen.since);
        }
        numbers += (numbers.empty() ? "" : ", ") + std::to_string(number);
        finding.tensors.insert(finding.tensors.end(), group.tensors.begin(), group.tensors.end());
        finding.text = "lr of group " + numbers + " is 0 from here on, after " +
                       number_text(seen.last, 6) +
                       ": the weights do not move, though they have gradients";
      }
    }
    for (auto& [place, one] : said) {
      Finding& finding = one.first;
      std::ranges::sort(finding.tensors);
      finding.tensors.erase(std::ranges::unique(finding.tensors).begin(), finding.tensors.end());
      found.add(std::move(finding));
    }
  }
}

}  // namespace trainmon::detect
