// Ranks of which no wrapper says that they go together, and whose loop reduces gradients by itself.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "detect/reduce.h"
#include "detect/window.h"

namespace trainmon::detect {

// Ranks with gradients of their own that step with the same ones, bit for bit, have reduced them.
// Where that is so of most tensors in several steps, it is said of those that are left out. Never
// certain, for nothing declares what a loop means to reduce. Says it once of each tensor and start.
class ReducedByHand {
 public:
  void check(const Window& window, Findings& found);

 private:
  // Of the gradients of ranks: nothing tells, one for all of them, or several.
  enum class Reduced : std::uint8_t { unknown, shared, apart };
  struct Seen {
    bool began_alike = false;  // the weights of ranks, in the first step
    int shared = 0;            // steps
    int apart = 0;
    std::int64_t since = 0;  // the first step in which they were apart
    bool is_said = false;
    std::array<int, kQuantities> equal = {};  // steps in a row, by quantity
  };
  struct Gradient {
    std::uint32_t tensor;
    std::vector<const Observation*> reduced, own;  // of all ranks
    Reduced what;
  };
  // Of one optimizer.
  struct Loop {
    int steps = 0;                         // in which ranks have reduced
    bool has_ended = false;                // it reduces no more, and it is said
    std::vector<StepEvidence> first = {};  // such steps, until there are enough of them
    Held held = {};
    Reductions reductions = {};
    std::set<std::string> said = {};  // of no tensor in particular
  };
  static constexpr int kEnough = 3;

  void note(const Window& window, const Gradient& one);
  void check(const Window& window, Loop& loop, const std::vector<Gradient>& all, Findings& found);
  void check_gradients(const Window& window, const std::vector<Gradient>& all, Findings& found);
  void check_means(const Window& window, Loop& loop, const std::vector<Gradient>& all,
                   Findings& found);
  void check_copies(const Window& window, Loop& loop, const std::vector<Gradient>& all,
                    Findings& found);
  bool is_left_out(const Window& window, const Gradient& one) const;

  std::map<std::int32_t, Loop> loops_;  // by optimizer
  std::map<std::uint32_t, Seen> tensors_;
};

}  // namespace trainmon::detect
