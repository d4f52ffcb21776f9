// Learning rates that rise again after they had fallen.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "detect/checks.h"

namespace trainmon::detect {

// A cosine that is followed behind its last step rises again. So does the warm-up of a start whose
// schedule was not restored. Warm restarts rise at once, and are not meant. Never certain, for a
// cycle of rates does so, too. Says it once of each group.
class RisingRates {
 public:
  void check(const Window& window, Findings& found);

 private:
  struct Rate {
    double last = 0.0;
    double largest = 0.0;
    double from = 0.0;  // before the first of the rises
    int rises = 0;      // with no fall between them
    std::int64_t since = 0;
    bool is_said = false;
  };
  using Place = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // rank, optimizer, group
  std::map<Place, Rate> rates_;
};

}  // namespace trainmon::detect
