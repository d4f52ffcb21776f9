// Learning rates that change by another amount in each step than in the start before, or than they
// did.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "detect/window.h"

namespace trainmon::detect {

// A schedule that was restored, and is now stepped twice in each step, or never. Its rate is right
// at first. A line or a cosine changes by nearly the same amount in neighbouring steps. In the
// middle of a start a schedule may begin to be stepped in each micro step. Then the change is a
// whole number of times that before. Never certain, for one may choose another schedule. Says each
// once of an optimizer.
class RateSlopes {
 public:
  // A start begins behind a step of an earlier one.
  void begin();
  // The start that begins follows on no step.
  void forget() { rates_.clear(); }
  void check(const Window& window, Findings& found);

 private:
  struct Rate {
    double last = 0.0;
    std::int64_t last_step = 0;
    double change = 0.0;   // the last one, by the steps that it took
    int alike = 0;         // changes in a row that are like `change`
    double earlier = 0.0;  // of the start before; 0: none was steady
    std::int64_t since = 0;
    int steps = 0;            // of this start
    double steady = 0.0;      // the last of many alike before a change of another size; 0: none
    double times = 0.0;       // of that size
    std::int64_t broken = 0;  // its step
    int following = 0;        // changes in a row that are near the one before
    // Takes in the rate of a step.
    void add(double value, std::int64_t step);
  };
  using Place = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // rank, optimizer, group
  std::map<Place, Rate> rates_;
  void check_start(const Window& window, const Place& place, const Rate& rate, Findings& found);
  void check_middle(const Window& window, const Place& place, const Rate& rate, Findings& found);
  std::set<std::pair<std::int32_t, std::int32_t>> said_, said_in_middle_;  // rank, optimizer
};

}  // namespace trainmon::detect
