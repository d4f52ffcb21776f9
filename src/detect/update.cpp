// Weights move by what the formula of the optimizer makes of its state. Where that was not
// recorded, SGD is linear in what was; and of others, what had to move did.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

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
  const Observation* update;
};

// Roundings of an element of a step, beside those of the weight that it moves. Eight are of the
// optimizer, which has two quotients, a root, a sum, a product and three factors. As many are
// ours.
constexpr double kOfFormulas = 16.0;

// The norms of the two terms of NAdam, which may cancel, beyond that of their sum. The one of the
// gradient is at most sqrt(1 / (1 - beta2)) in each element: exp_avg_sq has its square with that
// factor. The other is at most this and their sum.
double terms_of_nadam(const Observation& update, const DeclaredGroup& group) {
  const double beta2 = value_of(group, "betas.1").value_or(0.0);
  return 2.0 * std::sqrt(update.count / (1.0 - beta2));
}

// By how much of itself a step of Adam may differ where its bias corrections 1 - beta^t are
// float32, as with capturable=True or torch.compile. `steps` is the fewest that t may be: more keep
// more digits.
double of_corrections_in_float32(const DeclaredGroup& group, std::int64_t steps) {
  const double unit = unit_roundoff(DType::float32);
  const auto part = [&](const char* name) {
    const double beta = value_of(group, name).value_or(0.0);
    if (beta <= 0.0 || beta >= 1.0) return 0.0;
    const double power = std::pow(beta, static_cast<double>(steps));
    const double of_beta = std::abs(static_cast<double>(static_cast<float>(beta)) / beta - 1.0);
    const double error = 2.0 * unit + static_cast<double>(steps) * of_beta * power;
    return error / (1.0 - power);
  };
  return part("betas.0") + 0.5 * part("betas.1");
}

// A rank may hold a shard of the weight, and the whole step that moves it.
bool are_of_same_part(const std::vector<const Observation*>& all) {
  return std::ranges::all_of(
      all, [&](const Observation* one) { return one->count == all.front()->count; });
}

// w = w (1 - lr decay) - lr u, with the step u that was computed from the state. For SGD u is the
// gradient or the momentum buffer: Nesterov's formula adds the one to the other.
// `error` is of the step, in parts of it.
std::optional<Distance> distance_of_formula(const Step& step, const DeclaredGroup& group,
                                            double error) {
  const auto lr = value_of(group, "lr");
  // The formula is known: keys that a schedule or the program adds change nothing.
  const bool is_of_sgd = group.contains("dampening");
  const bool is_nesterov = is_of_sgd && is_set(group, "nesterov");
  std::vector<const Observation*> all = {step.before, step.after, step.update};
  if (is_nesterov) all.push_back(step.gradient);
  if (!lr || !are_of_same_part(all)) return std::nullopt;
  if (evidence_of_sums(all) != Evidence::sketches) return std::nullopt;
  // Where the group has the key, it decides: AdamW of PyTorch goes by it.
  const bool is_decoupled = group.contains("decoupled_weight_decay")
                                ? is_set(group, "decoupled_weight_decay")
                                : step.update->decays_apart;
  const bool is_apart = is_decoupled || (is_of_sgd && (is_nesterov || !is_set(group, "momentum")));
  const double decay = is_apart ? value_of(group, "weight_decay").value_or(0.0) : 0.0;
  const Linear u = step.update->linear(Evidence::sketches);
  Linear left = step.after->linear(Evidence::sketches);
  left.add(*lr * decay - 1.0, step.before->linear(Evidence::sketches));
  if (is_nesterov) {
    left.add(*lr * (is_set(group, "maximize") ? -1.0 : 1.0),
             step.gradient->linear(Evidence::sketches));
  }
  left.add(*lr * (is_nesterov ? value_of(group, "momentum").value_or(0.0) : 1.0), u);
  double size = u.size;
  if (group.contains("momentum_decay")) size += kStretch * terms_of_nadam(*step.update, group);
  const double unit = std::max(unit_roundoff(step.after->dtype), unit_roundoff(step.update->dtype));
  left.stored += (kOfFormulas * unit + error) * std::abs(*lr) * size;
  return distance_of(left, *step.after, Evidence::sketches);
}

// The same of SGD alone, where u was not recorded: w = w - lr (d + decay w). d is the gradient or
// the momentum buffer, which has the decay in it. nullopt where the group is not of plain SGD.
std::optional<Distance> distance_of_sgd(const Step& step, const DeclaredGroup& group) {
  const std::optional<double> momentum = value_of(group, "momentum");
  const std::optional<double> lr = value_of(group, "lr"), nesterov = value_of(group, "nesterov");
  if (!is_sgd(group) || !momentum || !lr || !nesterov || *nesterov != 0.0) return std::nullopt;
  const Observation* moved_by = *momentum != 0.0 ? step.momentum : step.gradient;
  if (moved_by == nullptr || !moved_by->is_finite) return std::nullopt;
  if (!are_of_same_part({step.after, moved_by})) return std::nullopt;
  const double decay = *momentum != 0.0 ? 0.0 : value_of(group, "weight_decay").value_or(0.0);
  const double sign = *momentum == 0.0 && is_set(group, "maximize") ? -1.0 : 1.0;
  const Evidence evidence = evidence_of_sums({step.before, step.after, moved_by});
  Linear left = step.after->linear(evidence);
  left.add(*lr * decay - 1.0, step.before->linear(evidence));
  left.add(*lr * sign, moved_by->linear(evidence));
  return distance_of(left, *step.after, evidence);
}

// Whether there was an equation to be checked.
bool check_equation(const Window& window, const Step& step, std::int64_t steps, Findings& found) {
  const bool has_step = step.update != nullptr && step.update->is_finite;
  const auto distance = [&](bool has_short_corrections) {
    return window.distance(*step.after, [&](const DeclaredGroup& group) {
      const double error = has_short_corrections ? of_corrections_in_float32(group, steps) : 0.0;
      const auto by_formula = has_step ? distance_of_formula(step, group, error) : std::nullopt;
      return by_formula ? by_formula : distance_of_sgd(step, group);
    });
  };
  const auto far = distance(false);
  if (!far) return false;
  found.checked(Check::update, far->evidence);
  // A rate of zero explains weights that stay whatever moves them: that it held tells nothing.
  if (far->is_within() && are_equal(*step.before, *step.after)) return true;
  auto finding =
      window.result_of_formula(Check::update, Stage::update, *step.after, far->is_within());
  if (!finding) return true;
  finding->text = "the weights did not move as the optimizer with the declared values moves them";
  if (!window.has_known_formula(*step.after)) finding->text += kUnlessOther;
  if (const auto wide = distance(true); wide && wide->is_within()) {
    finding->certain = false;
    finding->text += ", unless its bias corrections are float32 (capturable, torch.compile)";
  }
  finding->value = far->off;
  finding->bound = far->bound;
  finding->evidence = far->evidence;
  found.add(std::move(*finding));
  return true;
}

// The largest step of Adam is at least lr norm(exp_avg) / sqrt(n) / (sqrt(largest exp_avg_sq) +
// eps). That is without the bias correction of exp_avg, which makes it larger, and with the
// largest that exp_avg_sq's can be. Decay may pull against it. What is left moves any weight, if
// it is more than half of its last bit.
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
    // The first steps of RAdam and NAdam are others.
    if (!values.contains("amsgrad")) return;
    if (!lr || !eps || !beta2 || *lr <= 0.0 || *beta2 >= 1.0) return;
    const double largest_v = std::sqrt(v->absmax / (1.0 - *beta2));
    const double step_of_adam = m->norm() / std::sqrt(m->count) / (largest_v + *eps);
    const double decay = value_of(values, "weight_decay").value_or(0.0) * after.absmax;
    least = std::min(least, *lr * (step_of_adam - decay));
  }
  if (!(least > 4.0 * unit_roundoff(after.dtype) * after.absmax) || std::isinf(least)) return;
  const Evidence evidence = evidence_of_bits({step.before, &after});
  found.checked(Check::update, evidence);
  auto finding = window.result_of_formula(Check::update, Stage::update, after,
                                          !are_equal(*step.before, after));
  if (!finding) return;
  finding->evidence = evidence;
  finding->text = "the weights did not move at all, although their moments are not zero";
  if (!window.has_known_formula(after)) finding->text += kUnlessOther;
  found.add(std::move(*finding));
}

}  // namespace

void Updates::check(const Window& window, Findings& found) {
  if (window.now.restart != restart_) steps_.clear();
  restart_ = window.now.restart;
  for (const Observation& after : window.now.all()) {
    if (after.quantity != Quantity::weight_after || !after.is_finite) continue;
    const auto find = [&](Quantity quantity) {
      return window.now.find(after.tensor, quantity, after.rank);
    };
    const Step step{find(Quantity::weight_before), &after, find(Quantity::grad_reduced),
                    find(Quantity::momentum_buffer), find(Quantity::update)};
    const GroupValues* const groups = window.groups(after);
    if (step.before == nullptr || !step.before->is_finite || step.gradient == nullptr) continue;
    if (groups == nullptr || window.has_edit(*step.before, after)) continue;
    // With checks there is such a row wherever the formula is known.
    if (step.update == nullptr && after.fingerprint) continue;
    const std::int64_t steps = ++steps_[{after.rank, after.tensor}];
    if (!check_equation(window, step, steps, found)) check_moved(window, step, *groups, found);
  }
}

}  // namespace trainmon::detect
