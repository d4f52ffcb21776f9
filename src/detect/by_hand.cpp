// Gradients of two ranks are equal in all bits where somebody reduced them, or where the ranks were
// given the same. The unreduced ones tell which. Local SGD, models of their own, a server that
// steps for all and one seed for all give no such steps. Experts begin with other weights.
#include "detect/by_hand.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "detect/checks.h"

namespace trainmon::detect {
namespace {

constexpr std::string_view kByHand = "; ranks reduce by hand here, and it may be meant";
// What ranks that reduce keep the same, in the order of a step.
constexpr std::array kCopied = {Quantity::weight_before, Quantity::exp_avg, Quantity::exp_avg_sq,
                                Quantity::momentum_buffer, Quantity::weight_after};

// Of one tensor, of all ranks, where nothing is said of how they go together.
std::vector<const Observation*> unrelated(const Window& window, std::uint32_t tensor,
                                          Quantity quantity) {
  auto ranks = window.now.of(tensor, quantity);
  const auto fits = [&](const Observation* one) {
    return one->is_independent && one->is_finite && are_comparable(*one, *ranks.front());
  };
  if (ranks.size() != window.ranks.size() || !std::ranges::all_of(ranks, fits)) ranks.clear();
  return ranks;
}

// The module that has the parameter.
std::string_view owner_of(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

// As if a wrapper had said that ranks reduce.
StepEvidence declared(const Window& window, const std::vector<const Observation*>& rows) {
  StepEvidence step(window.now.restart, window.now.step);
  for (const Observation* row : rows) {
    Observation one = *row;
    one.is_independent = false;
    one.is_replicated = one.quantity == Quantity::grad_reduced;
    step.add(one);
  }
  step.sort();
  return step;
}

}  // namespace

void ReducedByHand::check(const Window& window, Findings& found) {
  if (window.ranks.size() < 2) return;
  std::map<std::int32_t, std::vector<Gradient>> all;
  for (const std::uint32_t tensor : window.now.tensors()) {
    Gradient one{tensor, unrelated(window, tensor, Quantity::grad_reduced),
                 unrelated(window, tensor, Quantity::grad_unreduced), Reduced::unknown};
    if (one.reduced.empty() || one.own.empty()) continue;
    if (!are_all_equal(one.own)) {
      one.what = are_all_equal(one.reduced) ? Reduced::shared : Reduced::apart;
    }
    all[window.tensors[tensor].optimizer].push_back(std::move(one));
  }
  for (auto& [optimizer, gradients] : all) {
    for (const Gradient& one : gradients) note(window, one);
    Loop& loop = loops_[optimizer];
    if (!loop.has_ended) check(window, loop, gradients, found);
  }
}

void ReducedByHand::note(const Window& window, const Gradient& one) {
  const auto [at, is_new] = tensors_.try_emplace(one.tensor);
  if (!is_new) return;
  const auto weights = unrelated(window, one.tensor, Quantity::weight_before);
  at->second.began_alike = !weights.empty() && are_all_equal(weights);
}

void ReducedByHand::check(const Window& window, Loop& loop, const std::vector<Gradient>& all,
                          Findings& found) {
  const auto shared = std::ranges::count(all, Reduced::shared, &Gradient::what);
  const auto apart = std::ranges::count(all, Reduced::apart, &Gradient::what);
  const bool reduces = shared > 1 && shared > apart;
  if (reduces) ++loop.steps;
  if (loop.steps >= kEnough && reduces) {
    check_gradients(window, all, found);
    check_copies(window, loop, all, found);
  } else if (loop.steps >= kEnough && apart > 1) {
    loop.has_ended = true;
    Finding one = window.finding(Check::reduce, Stage::grad_reduced, 0);
    one.ranks = window.ranks;
    one.certain = false;
    one.text = "most gradients are not reduced over ranks, as they were in " + grouped(loop.steps) +
               " steps before";
    found.add(std::move(one));
    return;
  }
  if (reduces) check_means(window, loop, all, found);
  for (const Gradient& one : all) {
    Seen& seen = tensors_[one.tensor];
    if (one.what == Reduced::shared) ++seen.shared;
    if (one.what == Reduced::apart && seen.apart++ == 0) seen.since = window.now.step;
  }
}

// Experts and what each rank trains for itself begin with other weights; a bias of theirs may not.
bool ReducedByHand::is_left_out(const Window& window, const Gradient& one) const {
  const Seen& seen = tensors_.at(one.tensor);
  if (seen.shared >= kEnough) return seen.apart == 0;
  if (seen.shared > 0) return false;
  const std::string_view owner = owner_of(window.tensors[one.tensor].name);
  return std::ranges::all_of(tensors_, [&](const auto& other) {
    return other.second.began_alike || other.second.shared > 0 ||
           owner_of(window.tensors[other.first].name) != owner;
  });
}

void ReducedByHand::check_gradients(const Window& window, const std::vector<Gradient>& all,
                                    Findings& found) {
  for (const Gradient& one : all) {
    Seen& seen = tensors_[one.tensor];
    if (one.what == Reduced::unknown || seen.is_said) continue;
    found.checked(Check::reduce, evidence_of_bits(one.reduced));
    if (one.what == Reduced::shared || !is_left_out(window, one)) continue;
    seen.is_said = true;
    Finding finding = window.finding(Check::reduce, Stage::grad_reduced, 0, {one.tensor});
    finding.evidence = evidence_of_bits(one.reduced);
    finding.certain = false;
    name_odd_ranks(one.reduced, finding);
    // Who steps with its own gradient has not reduced it.
    std::vector<std::int32_t> own;
    for (std::size_t r = 0; r < one.own.size(); ++r) {
      if (are_equal(*one.own[r], *one.reduced[r])) own.push_back(one.own[r]->rank);
    }
    if (!own.empty()) {
      finding.ranks = own;
      finding.is_one_of_ranks = false;
    }
    if (seen.shared == 0) finding.step = seen.apart == 0 ? window.now.step : seen.since;
    finding.text = "the gradient is not reduced over ranks, and those of most tensors are" +
                   std::string(seen.shared > 0 ? ", as it was in the steps before" : "") +
                   std::string(kByHand);
    found.add(std::move(finding));
  }
}

void ReducedByHand::check_means(const Window& window, Loop& loop, const std::vector<Gradient>& all,
                                Findings& found) {
  std::vector<const Observation*> rows;
  for (const Gradient& one : all) {
    if (one.what != Reduced::shared || tensors_[one.tensor].is_said) continue;
    rows.insert(rows.end(), one.reduced.begin(), one.reduced.end());
    rows.insert(rows.end(), one.own.begin(), one.own.end());
  }
  loop.first.push_back(declared(window, rows));
  if (loop.steps < kEnough) return;
  Findings own;
  for (const StepEvidence& step : std::exchange(loop.first, {})) {
    const Window as_declared{
        step,         nullptr,          window.tensors,  window.ranks,        window.declared,
        window.edits, window.lossy,     loop.held,       window.logged_norms, window.formulas,
        window.moves, window.evaluated, window.uncleared};
    loop.reductions.check(as_declared, own);
    own.join_ranks();
  }
  for (int i = 0; i < kEvidences; ++i) {
    const auto evidence = static_cast<Evidence>(i);
    found.checked(Check::reduce, evidence, own.count_of(Check::reduce, evidence));
  }
  for (Finding& one : own.take()) {
    const bool is_new = std::ranges::any_of(
        one.tensors, [&](std::uint32_t tensor) { return !tensors_[tensor].is_said; });
    if (one.tensors.empty() ? !loop.said.insert(one.text).second : !is_new) continue;
    for (const std::uint32_t tensor : one.tensors) tensors_[tensor].is_said = true;
    one.certain = false;
    one.text += kByHand;
    found.add(std::move(one));
  }
}

// What ranks held alike for several steps and do not any more. It is said of the first quantity of
// a tensor. Where most tensors part at once, nothing is said after it.
void ReducedByHand::check_copies(const Window& window, Loop& loop, const std::vector<Gradient>& all,
                                 Findings& found) {
  for (const Quantity quantity : kCopied) {
    std::vector<std::vector<const Observation*>> parted;
    std::size_t compared = 0;
    for (const Gradient& one : all) {
      Seen& seen = tensors_[one.tensor];
      const auto copies = unrelated(window, one.tensor, quantity);
      if (copies.empty() || seen.is_said) continue;
      const auto is_own = [&](const Observation* copy) {
        const Observation* const last =
            window.before == nullptr
                ? nullptr
                : window.before->find(copy->tensor, Quantity::weight_after, copy->rank);
        return copy->forward_changes || last == nullptr || window.has_edit(*last, *copy);
      };
      int& equal = seen.equal[static_cast<std::size_t>(quantity)];
      ++compared;
      if (are_all_equal(copies)) {
        ++equal;
        found.checked(Check::replicas, evidence_of_bits(copies));
      } else if (std::exchange(equal, 0) >= kEnough && std::ranges::none_of(copies, is_own)) {
        parted.push_back(copies);
      }
    }
    for (const auto& copies : parted) {
      Finding finding =
          window.finding(Check::replicas, stage_of(quantity), 0, {copies.front()->tensor});
      finding.evidence = evidence_of_bits(copies);
      finding.certain = false;
      name_odd_ranks(copies, finding);
      finding.text = std::string(quantity_name(quantity)) +
                     " differs between ranks, and was the same in the steps before" +
                     std::string(kByHand);
      found.add(std::move(finding));
      tensors_[copies.front()->tensor].is_said = true;
    }
    if (parted.size() > 1 && 2 * parted.size() > compared) {
      loop.has_ended = true;
      return;
    }
  }
}

}  // namespace trainmon::detect
