// Learning rates that rise again after they had fallen, or with which another start does not go on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

#include "detect/window.h"

namespace trainmon::detect {

// A cosine that is followed behind its last step rises again, more in each step. Warm restarts rise
// at once or by a linear warm-up, and are not meant. A start whose schedule was not restored has
// another rate. Never certain, for a cycle of rates does the one, and who starts again may choose
// another rate. Says each once of a group.
class LearningRates {
 public:
  // A start begins behind a step of an earlier one, which declared this.
  void begin(const DeclaredOfRanks& declared, std::int64_t step) {
    earlier_ = declared;
    earlier_step_ = step;
  }
  // The start that begins follows on no step.
  void forget() { rates_.clear(); }
  void check(const Window& window, Findings& found);

 private:
  struct Rate {
    double last = 0.0;
    double change = 0.0;  // the largest of late; what is long ago counts less
    double largest = 0.0;
    double from = 0.0;  // before the first of the rises
    double rise = 0.0;  // the first of them
    int rises = 0;      // with no fall between them
    std::int64_t step = 0;
    std::int64_t since = 0;
    bool is_said = false;
  };
  using Place = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // rank, optimizer, group
  void check_start(const Window& window, const Place& place, double value, Rate& rate,
                   Findings& found) const;
  static void check_rises(const Window& window, const Place& place, double value, Rate& rate,
                          Findings& found);

  std::map<Place, Rate> rates_;
  std::int64_t earlier_step_ = 0;
  std::optional<DeclaredOfRanks> earlier_;  // until the first step of a start was compared with it
};

}  // namespace trainmon::detect
