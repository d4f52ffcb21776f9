// Weights that change between two steps of the optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "detect/window.h"

namespace trainmon::detect {

// What a step left is what the next one finds: weights, between param_updated and param_origin.
// Says once of each tensor what may be meant. A program may change weights and put them back, as
// SAM does. That leaves roundings in step after step: what was certain of them is doubted then. So
// it is of a weight that is projected in each step.
class Gaps {
 public:
  void check(const Window& window, Findings& found);
  // Another start: what may be meant is not said again.
  void begin();
  // Whether a weight changed between two steps in a way that may be meant.
  bool has_reason(std::int32_t rank, std::uint32_t tensor) const {
    return said_.contains({rank, tensor});
  }

 private:
  struct Changed {
    const Observation* before;
    const Observation* after;
    std::optional<Finding> finding;  // nullopt: it was told before, or never held
  };
  struct OfRank {
    std::size_t compared = 0;
    std::size_t changed = 0;
    std::size_t rounded = 0;  // changed by no more than rounding does
    std::size_t pruned = 0;   // some of whose elements were set to 0
    double largest = 0.0;     // of all elements
    const Changed* last = nullptr;
  };
  // Changes of one way, of a rank or of a weight.
  struct Habit {
    std::deque<std::int64_t> steps;  // the last that had such a change
    bool is_one = false;
    std::vector<Finding> certain;  // what was said of them
    void note(const Finding& finding);
    // True where the last `times` lie within so many steps.
    bool note(std::int64_t step, std::size_t times, std::int64_t within);
  };
  // An extreme of a weight to which a program has set its elements so many times.
  struct Limit {
    double value = 0.0;
    int times = 0;
    void note(double one) {
      times = one == value ? times + 1 : 1;
      value = one;
    }
  };
  struct Limits {
    Limit low, high;
    bool is_said = false;
  };
  void note_limits(const Changed& one);
  // Those of a clamped weight, for others of its rank.
  void know_limits(const Changed& one);
  // A weight that goes beyond a limit, which a program kept in step after step.
  void check_limits(const Window& window, const Observation& now, Findings& found);
  void note_roundings(const Window& window, const std::map<std::int32_t, OfRank>& ranks,
                      Findings& found);
  // Whether a program changes this weight in step after step, for which nothing else is a reason.
  bool is_projected(const Changed& one, double largest, Findings& found);
  // Whether elements were set to a limit, as a program does that clamps weights in each step.
  bool is_clamped(const Changed& one) const;
  // Why a change may be meant; empty where nothing says so.
  std::string reason(const Window& window, const Changed& one, const OfRank& rank) const;
  std::set<std::pair<std::int32_t, std::uint32_t>> said_;  // rank, tensor: with a reason
  std::map<std::int32_t, Habit> rounded_;                  // by rank
  std::map<std::pair<std::int32_t, std::uint32_t>, Habit> projected_;  // by rank, tensor
  std::map<std::pair<std::int32_t, std::uint32_t>, Limits> limits_;    // by rank, tensor
  std::map<std::int32_t, std::set<double>> known_limits_;              // by rank, the first ones
};

}  // namespace trainmon::detect
