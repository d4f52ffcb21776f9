// Arguments of the model that ranks come to share, while others stay their own.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "detect/window.h"

namespace trainmon::detect {

// Ranks that load one state of random numbers draw the same noise, time steps and masks. Their data
// differ, so Inputs says nothing of the batch. Never certain, for a program may mean it. Says it
// once of each argument.
class SharedArguments {
 public:
  void check(const Window& window, Findings& found);

 private:
  using Call = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // chunk, micro step, call
  // In a row, of one argument of a call of each step.
  struct Line {
    std::int64_t own = 0;     // calls in which no two ranks had the same
    std::int64_t shared = 0;  // calls after those in which ranks had, and another one in each
    std::int64_t since = 0;   // the step of the first
    std::uint64_t last = 0;   // what they had
  };
  void note(const Window& window, const std::vector<const Input*>& all, bool has_own,
            Findings& found);

  std::map<std::pair<Call, std::string>, Line> lines_;
  std::set<std::string> said_;
  std::vector<std::int32_t> ranks_;
};

}  // namespace trainmon::detect
