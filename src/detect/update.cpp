// What can be said of an update by sums or sketches alone: SGD is linear; and what had to move did.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "detect/checks.h"
#include "model/rounding.h"

namespace trainmon::detect {
namespace {

// What SGD of PyTorch declares, and schedules beside it.
const std::set<std::string> kOfSgd = {"lr",           "initial_lr", "momentum",      "dampening",
                                      "weight_decay", "nesterov",   "maximize",      "foreach",
                                      "fused",        "name",       "differentiable"};

bool is_sgd(const DeclaredGroup& group) {
  return group.contains("dampening") &&
         std::ranges::all_of(group, [](const auto& one) { return kOfSgd.contains(one.first); });
}

// The tensors of one step of one parameter on one rank; nullptr where there is none.
struct Step {
  const Observation* before;
  const Observation* after;
  const Observation* gradient;
  const Observation* momentum;
};

// w = w - lr (d + decay w), where d is the gradient or the momentum buffer, which has the decay in
// it. nullopt where the group is not of plain SGD.
std::optional<Distance> distance_of_sgd(const Step& step, const DeclaredGroup& group) {
  const std::optional<double> momentum = value_of(group, "momentum");
  const std::optional<double> lr = value_of(group, "lr"), nesterov = value_of(group, "nesterov");
  if (!is_sgd(group) || !momentum || !lr || !nesterov || *nesterov != 0.0) return std::nullopt;
  const Observation* moved_by = *momentum != 0.0 ? step.momentum : step.gradient;
  if (moved_by == nullptr || !moved_by->is_finite) return std::nullopt;
  const double decay = *momentum != 0.0 ? 0.0 : value_of(group, "weight_decay").value_or(0.0);
  const double sign = *momentum == 0.0 && is_set(group, "maximize") ? -1.0 : 1.0;
  const Evidence evidence = evidence_of_sums({step.before, step.after, moved_by});
  Linear left = step.after->linear(evidence);
  left.add(*lr * decay - 1.0, step.before->linear(evidence));
  left.add(*lr * sign, moved_by->linear(evidence));
  return distance_of(left, *step.after, evidence);
}

void check_sgd(const Window& window, const Step& step, const GroupValues& groups, Findings& found) {
  const auto nearest =
      nearest_of(groups, [&](const DeclaredGroup& group) { return distance_of_sgd(step, group); });
  if (!nearest) return;
  found.checked(Check::update, nearest->evidence);
  auto finding = window.result(Check::update, Stage::update, *step.after, nearest->is_within());
  if (!finding) return;
  finding->text = "the weights did not move as SGD with the declared values moves them";
  finding->value = nearest->off;
  finding->bound = nearest->bound;
  finding->evidence = nearest->evidence;
  found.add(std::move(*finding));
}

// The largest step of Adam is at least lr norm(exp_avg) / sqrt(n) / (sqrt(largest exp_avg_sq) +
// eps), without the bias correction of exp_avg, which makes it larger, and with the largest that
// exp_avg_sq's can be. Decay may pull against it. What is left moves any weight, if it is more than
// half of its last bit.
void check_moved(const Window& window, const Step& step, const GroupValues& groups,
                 Findings& found) {
  const Observation& after = *step.after;
  const auto* m = window.now.find(after.tensor, Quantity::exp_avg, after.rank);
  const auto* v = window.now.find(after.tensor, Quantity::exp_avg_sq, after.rank);
  if (m == nullptr || v == nullptr || !m->is_finite || !v->is_finite) return;
  if (m->count != after.count || m->sum_sq == 0.0) return;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [group, values] : groups) {
    const auto lr = value_of(values, "lr"), eps = value_of(values, "eps");
    const auto beta2 = value_of(values, "betas.1");
    if (!lr || !eps || !beta2 || *lr <= 0.0 || *beta2 >= 1.0) return;
    const double largest_v = std::sqrt(v->absmax / (1.0 - *beta2));
    const double step_of_adam = m->norm() / std::sqrt(m->count) / (largest_v + *eps);
    const double decay = value_of(values, "weight_decay").value_or(0.0) * after.absmax;
    least = std::min(least, *lr * (step_of_adam - decay));
  }
  if (!(least > 4.0 * unit_roundoff(after.dtype) * after.absmax) || std::isinf(least)) return;
  const Evidence evidence = evidence_of_bits({step.before, &after});
  found.checked(Check::update, evidence);
  auto finding =
      window.result(Check::update, Stage::update, after, !are_equal(*step.before, after));
  if (!finding) return;
  finding->evidence = evidence;
  finding->text = "the weights did not move at all, although their moments are not zero";
  found.add(std::move(*finding));
}

}  // namespace

void check_update(const Window& window, Findings& found) {
  for (const Observation& after : window.now.all()) {
    if (after.quantity != Quantity::weight_after || !after.is_finite) continue;
    const auto find = [&](Quantity quantity) {
      return window.now.find(after.tensor, quantity, after.rank);
    };
    const Step step{find(Quantity::weight_before), &after, find(Quantity::grad_reduced),
                    find(Quantity::momentum_buffer)};
    const GroupValues* const groups = window.groups(after);
    if (step.before == nullptr || !step.before->is_finite || step.gradient == nullptr) continue;
    if (groups == nullptr) continue;
    check_sgd(window, step, *groups, found);
    check_moved(window, step, *groups, found);
  }
}

}  // namespace trainmon::detect
