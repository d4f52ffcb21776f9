// Weights that the training changes by itself, and that change far more than they did.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "detect/checks.h"

namespace trainmon::detect {

// Averages of weights, as the teacher of a student: they have no gradient, and each step moves them
// by a little. A decay that is lost moves all of them at once. Never certain, for a training may
// copy into them. Says it once of each rank. By sketches alone.
class OwnChanges {
 public:
  void check(const Window& window, Findings& found);

 private:
  std::map<std::pair<std::int32_t, std::uint32_t>, std::deque<double>> sizes_;  // rank, tensor
  std::set<std::int32_t> said_;                                                 // ranks
};

}  // namespace trainmon::detect
