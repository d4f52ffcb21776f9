// Arguments of the model that are given again at one distance, while others are new.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "detect/input_calls.h"
#include "detect/window.h"

namespace trainmon::detect {

// Random numbers that a program seeds again come again: noise, time steps, masks. The data beside
// them are new, so Inputs says nothing of the batch. Never certain, for a program may repeat an
// argument in turn. Says it once of each argument.
class RepeatedArguments {
 public:
  void check(const Window& window, Findings& found);

 private:
  using Place =
      std::tuple<std::int32_t, std::int32_t, std::int32_t, std::string>;  // rank, chunk,
                                                                          // call, argument
  static constexpr std::size_t kRemembered = 1024;                        // calls
  struct Line {
    LastGiven given{kRemembered};
    std::int64_t fresh = 0;       // calls in a row that were given what is new
    std::int64_t freshest = 0;    // the most of them
    std::int64_t distance = 0;    // to the call that had the same; 0: it is new
    std::int64_t again = 0;       // calls in a row with this distance
    std::int64_t since = 0;       // the step of the first
    bool began_as_batch = false;  // in the first of them all arguments came again
    // Of its next call.
    void note(std::uint64_t bits, std::int64_t step);
  };
  using Named = std::pair<const Input*, Line*>;
  void check_call(const Window& window, const std::vector<Named>& call, Findings& found);

  std::int32_t restart_ = 0;
  std::map<Place, Line> lines_;
  std::map<std::string, std::int64_t> said_;  // argument -> the step in which it was said
};

}  // namespace trainmon::detect
