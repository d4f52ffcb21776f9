// Both moments are linear in what they are made of, so their sums obey the same equations, and the
// sketches of the first.
#include "detect/moments.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "detect/checks.h"
#include "model/rounding.h"

namespace trainmon::detect {
namespace {

// What Adam, AdamW, NAdam and RAdam of PyTorch declare, and schedules beside them; and Adam and
// AdamWeightDecay of MindSpore. An optimizer that declares anything else has equations of its own.
const std::set<std::string> kKnown = {"lr",
                                      "initial_lr",
                                      "betas.0",
                                      "betas.1",
                                      "eps",
                                      "weight_decay",
                                      "amsgrad",
                                      "maximize",
                                      "foreach",
                                      "fused",
                                      "name",
                                      "capturable",
                                      "differentiable",
                                      "max_lr",
                                      "min_lr",
                                      "max_momentum",
                                      "base_momentum",
                                      "momentum_decay",
                                      "decoupled_weight_decay",
                                      "beta1",
                                      "beta2",
                                      "use_nesterov",
                                      "use_amsgrad",
                                      "loss_scale"};

constexpr std::string_view kIsDecayed = "weight_decay may be part of the gradient";

bool is_known(const DeclaredGroup& group) {
  // By which MindSpore divides gradients within the step.
  const bool is_divided = value_of(group, "loss_scale").value_or(1.0) != 1.0;
  return group.contains("eps") && !is_divided &&
         std::ranges::all_of(group, [](const auto& one) { return kKnown.contains(one.first); });
}

std::optional<double> beta_of(const DeclaredGroup& group, const char* torch,
                              const char* mindspore) {
  const std::optional<double> beta = value_of(group, torch);
  return beta ? beta : value_of(group, mindspore);
}

// How far one minus beta may be off where a fused kernel has rounded beta to float32 before.
double rounded_away(const DeclaredGroup& group, double beta) {
  return is_set(group, "fused") ? std::abs(static_cast<double>(static_cast<float>(beta)) - beta)
                                : 0.0;
}

// A step in which a decay of the weights may be part of the gradient.
bool may_decay_gradient(const DeclaredGroup& group) {
  return is_set(group, "weight_decay") && !is_set(group, "decoupled_weight_decay");
}

// The decay that is part of the gradient. nullopt where that cannot be told: an optimizer that does
// not declare `decoupled_weight_decay` may do either.
std::optional<double> decay_of_gradient(const DeclaredGroup& group) {
  if (!may_decay_gradient(group)) return 0.0;
  return group.contains("decoupled_weight_decay") ? value_of(group, "weight_decay") : std::nullopt;
}

std::optional<Distance> distance_of_exp_avg(const MomentRows& moment, const DeclaredGroup& group) {
  const std::optional<double> beta = beta_of(group, "betas.0", "beta1");
  const std::optional<double> decay = decay_of_gradient(group);
  if (!beta || !decay || !is_known(group)) return std::nullopt;
  const double sign = is_set(group, "maximize") ? -1.0 : 1.0;
  std::vector<const Observation*> all = {moment.now, moment.gradient};
  if (moment.before != nullptr) all.push_back(moment.before);
  if (*decay != 0.0) {
    const Observation* const weight = moment.weight;
    const bool is_there = weight != nullptr && weight->is_finite && !weight->forward_changes;
    if (!is_there || weight->count != moment.now->count) return std::nullopt;
    all.push_back(weight);
  }
  const Evidence evidence = evidence_of_sums(all);
  Linear left = moment.now->linear(evidence);
  if (moment.before != nullptr) left.add(-*beta, moment.before->linear(evidence));
  left.add(-(1.0 - *beta) * sign, moment.gradient->linear(evidence));
  if (*decay != 0.0) left.add(-(1.0 - *beta) * *decay, moment.weight->linear(evidence));
  return distance_of(left, *moment.now, evidence);
}

std::optional<Distance> distance_of_exp_avg_sq(const MomentRows& moment,
                                               const DeclaredGroup& group) {
  const std::optional<double> beta = beta_of(group, "betas.1", "beta2");
  if (!beta || !is_known(group) || may_decay_gradient(group)) return std::nullopt;
  const double before = moment.before == nullptr ? 0.0 : moment.before->sum;
  const double expected = *beta * before + (1.0 - *beta) * moment.gradient->sum_sq;
  Distance one;
  one.off = std::abs(moment.now->sum - expected);
  // All terms are positive: a bound of the elements is one of the sums.
  const double summing = std::max(moment.now->summing(), moment.gradient->summing());
  one.bound = (kRoundings * unit_roundoff(moment.now->dtype) + 2.0 * summing) *
                  (std::abs(moment.now->sum) + std::abs(expected)) +
              rounded_away(group, *beta) * (before + moment.gradient->sum_sq) +
              underflow(*moment.now);
  return one;
}

// Calls use(moment) for every tensor and rank that has all three.
void for_each_moment(const Window& window, Quantity quantity,
                     const std::function<void(const MomentRows&)>& use) {
  if (window.before == nullptr) return;
  for (const Observation& now : window.now.all()) {
    if (now.quantity != quantity || !now.is_finite) continue;
    const Observation* before = window.before->find(now.tensor, quantity, now.rank);
    const Observation* gradient = window.now.find(now.tensor, Quantity::grad_reduced, now.rank);
    if (before == nullptr || gradient == nullptr || window.has_edit(*before, now)) continue;
    if (now.is_before_step || before->is_before_step) continue;
    if (before->is_finite && gradient->is_finite && before->count == gradient->count) {
      const auto* const weight = window.now.find(now.tensor, Quantity::weight_before, now.rank);
      use({&now, before, gradient, weight});
    }
  }
}

bool is_decayed(const Window& window, const Observation& moment) {
  const GroupValues* const groups = window.groups(moment);
  return groups != nullptr && std::ranges::any_of(*groups, [](const auto& one) {
           return is_known(one.second) && may_decay_gradient(one.second);
         });
}

void check_moments(const Window& window, Quantity quantity, Check check, const char* text,
                   Findings& found) {
  for_each_moment(window, quantity, [&](const MomentRows& moment) {
    const auto far = distance_of_moment(window, moment);
    if (!far) {
      if (is_decayed(window, *moment.now)) found.not_checked(check, kIsDecayed);
      return;
    }
    found.checked(check, far->evidence);
    auto finding = window.result_of_formula(check, Stage::moments, *moment.now, far->is_within());
    if (!finding) return;
    finding->value = far->off;
    finding->bound = far->bound;
    finding->evidence = far->evidence;
    finding->text = text;
    if (!window.has_known_formula(*moment.now)) finding->text += kUnlessOther;
    found.add(std::move(*finding));
  });
}

}  // namespace

std::optional<Distance> distance_of_moment(const Window& window, const MomentRows& moment) {
  return window.distance(*moment.now, [&](const DeclaredGroup& group) {
    return moment.now->quantity == Quantity::exp_avg ? distance_of_exp_avg(moment, group)
                                                     : distance_of_exp_avg_sq(moment, group);
  });
}

void check_exp_avg(const Window& window, Findings& found) {
  check_moments(window, Quantity::exp_avg, Check::exp_avg,
                "exp_avg is not beta1 times its value before and (1 - beta1) times the gradient",
                found);
}

void check_exp_avg_sq(const Window& window, Findings& found) {
  check_moments(window, Quantity::exp_avg_sq, Check::exp_avg_sq,
                "exp_avg_sq is not beta2 times its value before and (1 - beta2) times the square "
                "of the gradient",
                found);
}

}  // namespace trainmon::detect
