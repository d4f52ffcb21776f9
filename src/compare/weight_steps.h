// What each step did to the weights of two runs.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "compare/step_pairs.h"

namespace trainmon {

bool is_weight(std::string_view kind);

// The largest one; NaN is none.
double largest(const std::array<double, kValueStats>& differences);

// Of a pair of weights: the values of the step before and the furthest move. The move is of
// either run in one of the last steps, relative to the tensor. Before the first step a weight
// before the step has not moved; what one after the step did is taken from the next.
struct WeightStep {
  bool has_before = false;
  ComparedValues before_a{}, before_b{};
  double moved = 0.0;
};

// By tensor of A and rank, how far a weight after the step moved at first.
using FirstMoves = std::map<std::pair<std::uint32_t, std::int32_t>, double>;

// Pairs of one tensor and rank after one another. What a first step did is known two steps later:
// it is given, and what it was is told at the end.
class WeightSteps {
 public:
  explicit WeightSteps(FirstMoves first_moves) : known_(std::move(first_moves)) {}

  // The place of a tensor and rank; `is_updated`: of a weight after the step.
  std::size_t place_of(std::uint32_t tensor, std::int32_t rank, bool is_updated);
  // The next pair of that place.
  WeightStep next(std::size_t place, const ComparedValues& a, const ComparedValues& b);
  FirstMoves first_moves() const;

 private:
  static constexpr std::size_t kRecentSteps = 4;
  struct Weight {
    std::pair<std::uint32_t, std::int32_t> of;
    bool is_updated = false;
    std::int64_t pairs = 0;
    double first_move = 0.0;
    std::array<double, 3> first_moved{};           // of the first pairs
    std::array<double, kRecentSteps + 1> moved{};  // of the last ones, in turn
    ComparedValues a{}, b{};
  };
  const FirstMoves known_;
  std::map<std::pair<std::uint32_t, std::int32_t>, std::size_t> places_;
  std::vector<Weight> weights_;
};

// Relative differences; of weights, what this step did: the difference without the one that was
// there before. What lies within the resolution of the files is none. `scale` as of
// relative_differences().
std::array<double, kValueStats> differences_of(const ComparedValues& a, const ComparedValues& b,
                                               const WeightStep& step, double resolution,
                                               double scale = 0.0);

}  // namespace trainmon
