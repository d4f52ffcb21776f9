// Steps that take gradients of the step before: those alone, or with the new ones added.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "detect/window.h"

namespace trainmon::detect {

// The optimizer steps twice after one backward, or the backward left the gradients as they were.
// Weights have moved between, so equal bits of all gradients are no chance, but where they do not
// depend on the weights. Or nobody clears gradients between two steps, as the record says. Never
// certain. Says each once of each optimizer.
class StaleGradients {
 public:
  void check(const Window& window, Findings& found);

 private:
  struct Uncleared {
    int steps = 0;
    std::int64_t since = 0;
  };
  void check_uncleared(const Window& window, Findings& found);

  using Place = std::pair<std::int32_t, std::int32_t>;  // rank, optimizer
  std::set<Place> changed_;                             // its gradients were others once
  std::set<Place> said_;
  std::map<Place, Uncleared> uncleared_;
};

}  // namespace trainmon::detect
