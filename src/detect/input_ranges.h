// Ranks whose inputs are never of the size of those of other ranks.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "detect/rank_ranges.h"
#include "detect/window.h"

namespace trainmon::detect {

// Looks at numbers that are no ids, of ranks that are given parts of one batch. Never certain, for
// each rank may have data of its own. Says it once of each argument.
class InputRanges {
 public:
  void check(const Window& window, Findings& found);

 private:
  // chunk, call of its step, argument, number of elements
  using Place = std::tuple<std::int32_t, std::int32_t, std::string, double>;
  // Steps in a row in which the range of some rank was apart from those of all others.
  struct Run {
    RankRanges ranges = {};
    std::int64_t steps = 0;
    std::int64_t since = 0;
    bool is_first = true;  // of this start
  };
  using Runs = std::array<Run, 3>;  // of each measure
  void check_run(const Window& window, const Place& place, std::size_t measure, Run& run,
                 Findings& found);

  std::int32_t restart_ = 0;
  std::map<Place, Runs> runs_;
  std::set<std::string> said_;  // arguments
};

}  // namespace trainmon::detect
