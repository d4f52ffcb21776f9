// Steps of a tensor in a row, each with the one before.
#include "compare/weight_steps.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "trainmon/record.h"

namespace trainmon {
namespace {

constexpr double kUnknownMovement = 1.0 / 64;  // of a weight that is there in one step only

}  // namespace

bool is_weight(std::string_view kind) {
  return kind == kind::kParamOrigin || kind == kind::kParamUpdated;
}

double largest(const std::array<double, kValueStats>& differences) {
  double found = 0.0;
  for (const double one : differences) found = std::fmax(found, one);
  return found;
}

std::size_t WeightSteps::place_of(std::uint32_t tensor, std::int32_t rank, bool is_updated) {
  const auto [known, is_new] = places_.try_emplace({tensor, rank}, weights_.size());
  if (!is_new) return known->second;
  Weight& weight = weights_.emplace_back();
  weight.of = {tensor, rank};
  weight.is_updated = is_updated;
  if (!is_updated) return known->second;
  const auto first = known_.find(weight.of);
  weight.first_move = first == known_.end() ? kUnknownMovement : first->second;
  return known->second;
}

WeightStep WeightSteps::next(std::size_t place, const ComparedValues& a, const ComparedValues& b) {
  Weight& weight = weights_[place];
  WeightStep step;
  double moved = weight.first_move;
  if (weight.pairs > 0) {
    step.has_before = true;
    step.before_a = weight.a;
    step.before_b = weight.b;
    const double change = std::fmax(largest(relative_differences(weight.a, a)),
                                    largest(relative_differences(weight.b, b)));
    moved = std::isfinite(change) ? change : 0.0;
  }
  if (weight.pairs < 3) weight.first_moved[static_cast<std::size_t>(weight.pairs)] = moved;
  // Those that are not there yet are zero.
  weight.moved[static_cast<std::size_t>(weight.pairs) % weight.moved.size()] = moved;
  step.moved = *std::ranges::max_element(weight.moved);
  ++weight.pairs;
  weight.a = a;
  weight.b = b;
  return step;
}

FirstMoves WeightSteps::first_moves() const {
  FirstMoves moves;
  for (const Weight& weight : weights_) {
    if (!weight.is_updated) continue;
    const auto& [first, second, third] = weight.first_moved;
    moves[weight.of] = weight.pairs > 2   ? std::max(second, third)
                       : weight.pairs > 1 ? second
                                          : kUnknownMovement;
  }
  return moves;
}

std::array<double, kValueStats> differences_of(const ComparedValues& a, const ComparedValues& b,
                                               const WeightStep& step, double resolution,
                                               double scale) {
  ComparedValues moved = b;
  for (std::size_t i = 0; step.has_before && i < kValueStats; ++i) {
    const double there_before = step.before_b[i] - step.before_a[i];
    if (std::isfinite(there_before)) moved[i] -= there_before;
  }
  for (std::size_t i = 0; resolution > 0.0 && i < kValueStats; ++i) {
    // Twice, for a weight is written in two steps; somewhat more, for decimals are not binary.
    if (std::fabs(moved[i] - a[i]) <= 2.01 * resolution) moved[i] = a[i];
  }
  return relative_differences(a, moved, scale);
}

}  // namespace trainmon
