// Learning rates of groups that are another multiple of those beside them than they were.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "detect/window.h"

namespace trainmon::detect {

// A schedule moves the rates of all groups by one factor, so their quotients stay. A program that
// writes one rate into all groups, or forgets the factor of one, changes them. Never certain, for
// one may mean it. Says it once of an optimizer and start.
class RateFactors {
 public:
  // Another start chooses its rates.
  void forget() { *this = {}; }
  void check(const Window& window, Findings& found);

 private:
  struct First {  // the group that others are held against
    std::int32_t group = -1;
    double rate = 0.0, before = 0.0;  // now, and in the step before
  };
  struct Factor {
    std::int32_t of = -1;  // the first group
    double last = 0.0;     // the rate
    double value = 0.0;    // by that of the first group
    double before = 0.0;   // the value before this one
    int steps = 0;         // in a row with this value
    int steps_before = 0;  // with the one before
    std::int64_t since = 0;
    bool is_of_first = false;  // the rate of the first group made the larger jump
    // Takes in the rate of a step.
    void add(double rate, const First& first, std::int64_t step);
  };
  static void say(const Window& window, std::int32_t rank, std::int32_t group, const Factor& factor,
                  Findings& found);

  using Place = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // rank, optimizer, group
  std::map<Place, Factor> factors_;
  std::set<std::pair<std::int32_t, std::int32_t>> said_;  // rank, optimizer
};

}  // namespace trainmon::detect
