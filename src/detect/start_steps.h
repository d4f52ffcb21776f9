// Ranks that begin one start of a run at different steps, as from checkpoints of different age.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "detect/window.h"

namespace trainmon::detect {

// Certain where ranks that must hold the same step with the same gradients, and their weights part
// in this step. They must still be apart when the next one begins.
class StartSteps {
 public:
  // By rank, of one start in which they differ; before its first step. `are_aligned`: the first
  // step of each rank is the first one that the engine is shown, for they used the same gradients.
  void tell(std::int32_t restart, const std::map<std::int32_t, std::int64_t>& steps,
            bool are_aligned) {
    began_.try_emplace(restart, Began{steps, are_aligned});
  }
  void check(const Window& window, Findings& found);

 private:
  struct Began {
    std::map<std::int32_t, std::int64_t> steps;
    bool are_aligned = false;
  };
  void confirm(const Window& window, Findings& found);

  std::map<std::int32_t, Began> began_;  // by restart: what is not said yet
  std::optional<Finding> said_;          // in the step before, and may be certain
};

}  // namespace trainmon::detect
