// Steps that take the gradients of the step before.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "detect/checks.h"

namespace trainmon::detect {

// The optimizer steps twice after one backward, or the backward left the gradients as they were.
// Weights have moved between, so equal bits of all gradients are no chance, but where they do not
// depend on the weights. Never certain. Says it once of each optimizer.
class StaleGradients {
 public:
  void check(const Window& window, Findings& found);

 private:
  using Place = std::pair<std::int32_t, std::int32_t>;  // rank, optimizer
  std::set<Place> changed_;                             // its gradients were others once
  std::set<Place> said_;
};

}  // namespace trainmon::detect
