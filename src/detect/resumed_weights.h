// Whether a start that goes on behind a step of an earlier one has the weights that it left.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "detect/gap.h"
#include "detect/window.h"

namespace trainmon::detect {

// Never certain, for a program may begin with an average or another head on purpose. Says where
// the weights come from, as far as that can be told. Keeps a hash of the weights that each rank had
// in the last steps.
class ResumedWeights {
 public:
  // Of each step that was checked.
  void note(const StepEvidence& step);
  // A start begins one step after this one of an earlier start, of which the others are.
  void begin(const StepEvidence& left, const Held& held, const Gaps& gaps);
  // The start that begins follows on no step.
  void forget() { earlier_.reset(); }
  void check(const Window& window, Findings& found);

 private:
  struct Earlier {
    std::int32_t restart = 0;
    std::int64_t step = 0;
    std::vector<Observation> left;  // weights that nothing but steps had changed
  };
  // Weights of one rank that are not what was left.
  struct Apart {
    std::vector<std::pair<const Observation*, const Observation*>> weights;  // left, now
    std::size_t compared = 0;
  };
  // Weights that were left, by what those with the same elements share; in their order.
  using Owners = std::multimap<std::pair<double, double>, const Observation*>;
  using HashOfStep = std::pair<std::int64_t, std::uint64_t>;
  struct Hashes {
    std::int64_t first_step = 0;
    std::uint64_t first = 0;      // what that step found
    std::deque<HashOfStep> left;  // by the last steps
  };
  std::map<std::int32_t, Apart> apart(const Window& window, Findings& found) const;
  void check_dtypes(const Window& window, Findings& found) const;
  void report(const Window& window, const std::map<std::int32_t, Apart>& ranks,
              Findings& found) const;
  // Where the weights of a rank with this hash come from; empty where nothing tells.
  std::string source(const Window& window, std::int32_t rank, std::uint64_t hash, const Apart& all,
                     const Owners& owners) const;

  std::optional<Earlier> earlier_;         // until the first step of a start was compared with it
  std::map<std::int32_t, Hashes> hashes_;  // by rank
};

}  // namespace trainmon::detect
