// What all checks share.
#include "detect/window.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/rounding.h"

namespace trainmon::detect {

double number_of(const DeclaredValue& value) {
  const bool is_number = value.type == DeclaredValue::Type::number;
  return is_number ? value.number : std::numeric_limits<double>::quiet_NaN();
}

std::optional<double> value_of(const DeclaredGroup& group, const char* name) {
  const auto known = group.find(name);
  if (known == group.end() || std::isnan(known->second)) return std::nullopt;
  return known->second;
}

bool is_set(const DeclaredGroup& group, const char* name) {
  return value_of(group, name).value_or(0.0) != 0.0;
}

double underflow(const Observation& one) {
  return one.count * smallest_normal(one.dtype);
}

Distance distance_of(const Linear& left, const Observation& rounded, Evidence evidence) {
  Distance one;
  one.off = left.norm();
  one.bound =
      kRoundings * unit_roundoff(rounded.dtype) * left.size + left.stored + underflow(rounded);
  one.evidence = evidence;
  return one;
}

bool is_round(double value, double tolerance) {
  if (value == 0.0 || !std::isfinite(value)) return false;
  int exponent = 0;
  const double bits = 4.0 * std::frexp(value, &exponent);
  if (std::abs(bits - std::round(bits)) <= tolerance * bits) return true;
  const double unit = std::pow(10.0, std::floor(std::log10(value)) - 1.0);
  return std::abs(value - std::round(value / unit) * unit) <= tolerance * value;
}

// Where a quarter of all tensors never obeyed an equation, it is not theirs.
constexpr std::int64_t kFew = 4;

bool Held::fails(Check check, std::int32_t rank, std::uint32_t place, bool holds, bool& certain) {
  State& state = states_[{check, rank, place}];
  const State before = state;
  if (before == State::doubted) return false;
  if (holds) state = State::held;
  if (before == State::unknown && !holds) state = State::never;
  Count& count = counts_[{check, rank}];
  count.all += before == State::unknown ? 1 : 0;
  count.never += (state == State::never ? 1 : 0) - (before == State::never ? 1 : 0);
  certain = before == State::held && kFew * count.never < count.all;
  return !holds && before != State::never;
}

const GroupValues* groups_of(const DeclaredOfRanks& declared, std::int32_t rank,
                             std::int32_t optimizer) {
  const auto of_rank = declared.find(rank);
  if (of_rank == declared.end()) return nullptr;
  const auto of_optimizer = of_rank->second.find(optimizer);
  return of_optimizer == of_rank->second.end() ? nullptr : &of_optimizer->second;
}

const GroupValues* Window::groups(const Observation& one) const {
  return groups_of(declared, one.rank, tensors[one.tensor].optimizer);
}

std::optional<Distance> Window::distance(
    const Observation& one,
    const std::function<std::optional<Distance>(const DeclaredGroup&)>& distance) const {
  const GroupValues* const all = groups(one);
  if (all == nullptr) return std::nullopt;
  const Observation* const step = now.find(one.tensor, Quantity::update, one.rank);
  if (step != nullptr) {
    const auto own = all->find(step->group);
    return own == all->end() ? std::nullopt : distance(own->second);
  }
  std::optional<Distance> nearest;
  for (const auto& [group, values] : *all) {
    const std::optional<Distance> near = distance(values);
    if (!near) return std::nullopt;
    if (!nearest || near->off * nearest->bound < nearest->off * near->bound) nearest = near;
  }
  return nearest;
}

void Moves::note(const StepEvidence& step) {
  for (const Observation& after : step.all()) {
    if (after.quantity != Quantity::weight_after || have(after)) continue;
    const Observation* const before = step.find(after.tensor, Quantity::weight_before, after.rank);
    if (before == nullptr || are_equal(*before, after)) continue;
    std::vector<bool>& moved = moved_[after.rank];
    if (moved.size() <= after.tensor) moved.resize(after.tensor + 1);
    moved[after.tensor] = true;
  }
}

bool Moves::have(const Observation& one) const {
  const auto rank = moved_.find(one.rank);
  return rank != moved_.end() && one.tensor < rank->second.size() && rank->second[one.tensor];
}

std::string Window::why_own(const StepEvidence& step, const Observation& weight) const {
  const auto has = [&](Quantity quantity) {
    return step.find(weight.tensor, quantity, weight.rank) != nullptr;
  };
  const auto is_gradient = [&](const Observation& one) {
    return one.rank == weight.rank &&
           (one.quantity == Quantity::grad_reduced || one.quantity == Quantity::grad_unreduced);
  };
  // A target network, an average of weights, a bank of memory.
  if (!has(Quantity::grad_reduced) && !has(Quantity::grad_unreduced) &&
      std::ranges::any_of(step.all(), is_gradient)) {
    return "they have no gradient, and the training may copy or average into them";
  }
  // Rows of the step may be among those that were lost.
  const bool are_told =
      lossy.contains(weight.rank) || (has(Quantity::weight_before) && has(Quantity::weight_after));
  if (are_told && !moves.have(weight)) {
    return "no step of the optimizer has moved them so far, and the training may do it by itself";
  }
  return "";
}

bool Window::has_known_formula(const Observation& one) const {
  if (now.find(one.tensor, Quantity::update, one.rank) != nullptr) return true;
  const auto rank = formulas.find(one.rank);
  return rank != formulas.end() && rank->second.contains(tensors[one.tensor].optimizer);
}

bool Window::has_edit(const Observation& from, const Observation& to) const {
  const auto rank = edits.find(from.rank);
  if (rank == edits.end()) return false;
  const auto next = rank->second.upper_bound(from.seq);
  return next != rank->second.end() && *next <= to.seq;
}

Finding Window::finding(Check check, Stage stage, std::int32_t rank,
                        std::vector<std::uint32_t> of) const {
  Finding one;
  one.restart = now.restart;
  one.step = now.step;
  one.check = check;
  one.stage = stage;
  one.ranks = {rank};
  one.tensors = std::move(of);
  return one;
}

Finding Window::notice(Check check, Stage stage, std::int32_t rank, std::int64_t since,
                       std::vector<std::uint32_t> of) const {
  Finding one = finding(check, stage, rank, std::move(of));
  one.step = since;
  one.certain = false;
  return one;
}

std::vector<std::uint32_t> Window::reduced_of(std::int32_t rank, std::int32_t optimizer) const {
  std::vector<std::uint32_t> of;
  for (const Observation& one : now.all()) {
    if (one.quantity != Quantity::grad_reduced || one.rank != rank) continue;
    if (tensors[one.tensor].optimizer == optimizer) of.push_back(one.tensor);
  }
  return of;
}

std::optional<Finding> Window::result(Check check, Stage stage, const Observation& one,
                                      bool holds) const {
  bool certain = true;
  if (!held.fails(check, one.rank, Held::place(check, one), holds, certain)) return std::nullopt;
  Finding failed = finding(check, stage, one.rank, {one.tensor});
  failed.certain = certain;
  return failed;
}

std::optional<Finding> Window::result_of_formula(Check check, Stage stage, const Observation& one,
                                                 bool holds) const {
  std::optional<Finding> failed = result(check, stage, one, holds);
  if (failed && !has_known_formula(one)) {
    failed->certain = false;
    held.doubt(check, one.rank, Held::place(check, one));
  }
  return failed;
}

}  // namespace trainmon::detect
