// What all checks share.
#include "detect/checks.h"

#include <algorithm>
#include <cmath>

namespace trainmon::detect {

std::optional<double> value_of(const DeclaredGroup& group, const char* name) {
  const auto known = group.find(name);
  if (known == group.end() || std::isnan(known->second)) return std::nullopt;
  return known->second;
}

bool is_set(const DeclaredGroup& group, const char* name) {
  return value_of(group, name).value_or(0.0) != 0.0;
}

bool Held::fails(Check check, std::int32_t rank, std::uint32_t tensor, bool holds, bool& certain) {
  State& state = states_[{check, rank, tensor}];
  const State before = state;
  if (holds) state = State::held;
  if (before == State::unknown && !holds) state = State::never;
  certain = before == State::held;
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
  if (!held.fails(check, one.rank, one.tensor, holds, certain)) return std::nullopt;
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
