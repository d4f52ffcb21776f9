// Whether moments begin at zero behind an edit that was announced.
#pragma once

#include <cstdint>
#include <set>

#include "detect/window.h"

namespace trainmon::detect {

// A training that goes back or loads a checkpoint announces that by what it calls. Where it loads
// weights and not the state of its optimizer, the moments begin at zero in the middle of a start.
// Never certain, for a program may begin with new moments on purpose. Says it once of each rank.
class EditedMoments {
 public:
  void check(const Window& window, Findings& found);

 private:
  std::set<std::int32_t> said_;  // ranks
};

}  // namespace trainmon::detect
