// A weight in bfloat16 may stay for many steps by its rounding alone, as the ones of a norm do. A
// gradient may be nothing but rounding, as that of the bias of keys. Both are left out.
#include "detect/unmoved.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/text.h"
#include "model/rounding.h"

namespace trainmon::detect {
namespace {

constexpr int kStill = 8;
// Of the ratio that most weights which move have.
constexpr double kLeastRatio = 0.01;

// Before the step; after it where a loop declares its steps by itself.
const Observation* weight_of(const StepEvidence& step, std::uint32_t tensor, std::int32_t rank) {
  const Observation* const before = step.find(tensor, Quantity::weight_before, rank);
  return before != nullptr ? before : step.find(tensor, Quantity::weight_after, rank);
}

const Observation* gradient_of(const StepEvidence& step, std::uint32_t tensor, std::int32_t rank) {
  const Observation* const reduced = step.find(tensor, Quantity::grad_reduced, rank);
  return reduced != nullptr ? reduced : step.find(tensor, Quantity::grad_unreduced, rank);
}

}  // namespace

// In low precision a step of a usual size may change no element. Of many elements some are so small
// that it does. So another weight has to move that is no larger and has no larger gradient.
bool UnmovedWeights::may_round_away(const Weight& one, const std::vector<Weight>& all) {
  constexpr double kLow = 1e-4;
  const Observation& weight = *one.now;
  if (unit_roundoff(weight.dtype) <= kLow) return false;
  if (weight.absmax > 0.0 && weight.is_constant()) return true;
  return std::ranges::none_of(all, [&](const Weight& other) {
    return other.moved && other.now->dtype == weight.dtype && other.now->count <= weight.count &&
           other.ratio <= one.ratio;
  });
}

void UnmovedWeights::check(const Window& window, Findings& found) {
  if (window.before == nullptr) return;
  const StepEvidence& before = *window.before;
  for (const std::int32_t rank : window.ranks) {
    std::vector<Weight> weights;
    for (const std::uint32_t tensor : window.now.tensors()) {
      const Observation* const now = weight_of(window.now, tensor, rank);
      const Observation* const last = weight_of(before, tensor, rank);
      const Observation* const gradient = gradient_of(before, tensor, rank);
      if (now == nullptr || last == nullptr || gradient == nullptr) continue;
      Seen& seen = seen_[{rank, tensor}];
      const bool has_formula = before.find(tensor, Quantity::update, rank) != nullptr;
      seen.had_formula |= has_formula;
      const bool is_zero = gradient->absmax == 0.0 || !gradient->is_finite;
      const bool is_same_weight = now->quantity == last->quantity && now->dtype == last->dtype;
      if (is_zero || !is_same_weight || window.has_edit(*last, *now)) {
        seen.still = 0;
        continue;
      }
      const double ratio = last->norm() > 0.0 ? gradient->norm() / last->norm()
                                              : std::numeric_limits<double>::infinity();
      weights.push_back({now, ratio, !are_equal(*last, *now), has_formula});
    }
    check(window, weights, found);
  }
}

void UnmovedWeights::check(const Window& window, const std::vector<Weight>& weights,
                           Findings& found) {
  std::vector<double> ratios;
  bool has_stepped = false;  // an optimizer of which that is known
  for (const Weight& one : weights) {
    if (!one.moved) continue;
    ratios.push_back(one.ratio);
    has_stepped |= one.has_formula;
  }
  // A step that was left out, or a rate of zero, moves none of them.
  const bool do_most_move = ratios.size() >= 2 && 2 * ratios.size() > weights.size();
  if (!has_stepped && !do_most_move) return;
  std::ranges::nth_element(ratios, ratios.begin() + std::ssize(ratios) / 2);
  const double least = kLeastRatio * ratios[ratios.size() / 2];
  for (const Weight& one : weights) {
    const Observation& now = *one.now;
    Seen& seen = seen_[{now.rank, now.tensor}];
    if (seen.had_formula) continue;
    if (one.moved) {
      seen.moved = seen.still == 0 ? seen.moved + 1 : 1;
      seen.still = 0;
      seen.has_moved = true;
      continue;
    }
    if (one.ratio < least || may_round_away(one, weights)) continue;
    if (seen.still++ == 0) seen.since = window.before->step;
    const bool is_told = !seen.has_moved || seen.moved >= kStill;
    if (seen.is_said || seen.still < kStill || !is_told) continue;
    seen.is_said = true;
    Finding finding =
        window.notice(Check::update, Stage::update, now.rank, seen.since, {now.tensor});
    finding.evidence = evidence_of_bits({&now});
    finding.text =
        "the weights " +
        (seen.has_moved ? std::string("do not move any more")
                        : "did not move in the first " + std::to_string(kStill) + " steps") +
        ", though they have gradients and " +
        (has_stepped ? "others move: they may be in no group of the optimizer"
                     : "most others move");
    found.add(std::move(finding));
  }
}

}  // namespace trainmon::detect
