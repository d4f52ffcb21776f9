// Whether a start that goes on with the weights of an earlier one goes on with its moments, too.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "detect/moments.h"

namespace trainmon::detect {

// Never certain, for a program may begin with other moments on purpose. Says it once of each start
// and rank, when the next step has shown that the equations of moments hold in this start.
class ResumedMoments {
 public:
  // A start begins one step after this one of an earlier start. Of that `declared` and `held` are.
  void begin(StepEvidence&& left, const DeclaredOfRanks& declared, Held&& held) {
    earlier_ = Earlier{std::move(left), declared, std::move(held)};
  }
  // The start that begins follows on no step.
  void forget() { *this = {}; }
  void check(const Window& window, Findings& found);

 private:
  struct Earlier {
    StepEvidence left;
    DeclaredOfRanks declared;
    Held held;
  };
  // Moments that do not follow from what the earlier start left, of one rank.
  struct Apart {
    std::vector<MomentRows> moments;
    std::size_t fresh = 0;  // of them
  };
  // Whether the rank goes on with the weights that the earlier start left.
  bool goes_on(const Window& window, std::int32_t rank) const;
  // Whether the optimizer of a tensor is of the same class as in the earlier start.
  bool is_same_class(const Window& window, const Observation& moment) const;
  Apart apart(const Window& window, std::int32_t rank, Findings& found) const;
  // Where they come from, as far as that can be told.
  std::string source(const Window& window, const Apart& all) const;
  void check_dtypes(const Window& window, std::int32_t rank, Findings& found) const;
  void compare(const Window& window, Findings& found);
  void confirm(const Window& window, Findings& found);

  std::optional<Earlier> earlier_;  // until the first step of a start was compared with it
  struct Open {
    Finding finding;
    std::vector<std::pair<std::uint32_t, Check>> failed;  // by tensor
  };
  std::vector<Open> open_;  // of that step
};

}  // namespace trainmon::detect
