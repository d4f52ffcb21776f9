// What all checks share.
#include "detect/checks.h"

#include <algorithm>
#include <cmath>

#include "model/rounding.h"

namespace trainmon::detect {

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

std::optional<Distance> nearest_of(
    const GroupValues& groups,
    const std::function<std::optional<Distance>(const DeclaredGroup&)>& distance) {
  std::optional<Distance> nearest;
  for (const auto& [group, values] : groups) {
    const std::optional<Distance> one = distance(values);
    if (!one) return std::nullopt;
    if (!nearest || one->off * nearest->bound < nearest->off * one->bound) nearest = one;
  }
  return nearest;
}

// Where a quarter of all tensors never obeyed an equation, it is not theirs.
constexpr std::int64_t kFew = 4;

bool Held::fails(Check check, std::int32_t rank, std::uint32_t place, bool holds, bool& certain) {
  State& state = states_[{check, rank, place}];
  const State before = state;
  if (holds) state = State::held;
  if (before == State::unknown && !holds) state = State::never;
  Count& count = counts_[{check, rank}];
  count.all += before == State::unknown ? 1 : 0;
  count.never += (state == State::never ? 1 : 0) - (before == State::never ? 1 : 0);
  certain = before == State::held && kFew * count.never < count.all;
  return !holds && before != State::never;
}

const GroupValues* Window::groups(const Observation& one) const {
  const auto rank = declared.find(one.rank);
  if (rank == declared.end()) return nullptr;
  const auto optimizer = rank->second.find(tensors[one.tensor].optimizer);
  return optimizer == rank->second.end() ? nullptr : &optimizer->second;
}

bool Window::has_edit(const Observation& from, const Observation& to) const {
  const auto rank = edits.find(from.rank);
  return rank != edits.end() && std::ranges::any_of(rank->second, [&](std::uint64_t seq) {
           return seq > from.seq && seq <= to.seq;
         });
}

std::optional<Finding> Window::result(Check check, Stage stage, const Observation& one,
                                      bool holds) const {
  bool certain = true;
  // Of replicas each quantity has a history of its own.
  const auto quantity = check == Check::replicas ? static_cast<std::uint32_t>(one.quantity) : 0;
  const std::uint32_t place = one.tensor * kQuantities + quantity;
  if (!held.fails(check, one.rank, place, holds, certain)) return std::nullopt;
  Finding finding;
  finding.restart = now.restart;
  finding.step = now.step;
  finding.check = check;
  finding.stage = stage;
  finding.ranks = {one.rank};
  finding.tensors = {one.tensor};
  finding.certain = certain;
  return finding;
}

}  // namespace trainmon::detect
