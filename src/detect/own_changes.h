// Weights that the training changes by itself, and that change far more than they did, or no more.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "detect/steady_change.h"
#include "detect/window.h"

namespace trainmon::detect {

// Averages of weights, as the teacher of a student: they have no gradient, and each step moves them
// by a little. A decay that is lost moves all of them at once. A training that averages into other
// weights leaves them where they are. Never certain, for a training may copy into them,
// or end it. Says each once, of a rank and of a weight. By sketches alone.
class OwnChanges {
 public:
  void check(const Window& window, Findings& found);
  // Another start, which may move them otherwise; that it moves them holds on.
  void begin();

 private:
  struct OfWeight {
    std::deque<double> sizes;  // of its last changes
    SteadyChange changes;      // behind a step
  };
  // Weights by the step and the rank that something began at.
  using Places = std::map<std::pair<std::int64_t, std::int32_t>, std::vector<std::uint32_t>>;
  static void report(const Window& window, const Places& places, const char* text, Findings& found);

  std::map<std::pair<std::int32_t, std::uint32_t>, OfWeight> weights_;  // rank, tensor
  std::set<std::int32_t> said_;                                         // ranks
};

}  // namespace trainmon::detect
