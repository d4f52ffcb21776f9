// What modules return in the forward, and again where the backward recomputes it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "detect/window.h"

namespace trainmon::detect {

// Activation checkpointing calls modules again, and the gradient is that of what they return then.
// It is the same bit for bit, unless random numbers or a state are others. Some devices add in any
// order, so it is the past of a rank that tells: all were the same, and then several are not. Never
// certain. Says it once of each rank and start.
class Recomputed {
 public:
  static constexpr std::int64_t kAlike = 24;   // pairs before
  static constexpr std::int64_t kOthers = 3;   // pairs that are others
  static constexpr std::int64_t kWithin = 16;  // steps that have them

  void check(const Window& window, Findings& found);

 private:
  struct OfRank {
    std::int64_t alike = 0;
    std::int64_t others = 0;
    std::int64_t since = 0;           // the step that has the first of them
    std::set<std::uint32_t> tensors;  // of them
    bool is_said = false;
  };
  std::map<std::int32_t, OfRank> ranks_;
};

}  // namespace trainmon::detect
