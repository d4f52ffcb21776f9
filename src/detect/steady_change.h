// What changes in each step for a while, and then does not change any more.
#pragma once

#include <cstdint>
#include <utility>

namespace trainmon::detect {

class SteadyChange {
 public:
  static constexpr std::int64_t kChanged = 48, kStill = 8;  // steps in a row

  // Of a step in which it did not change. True once: kStill steps had none, and before them
  // kChanged had one.
  bool note_still(std::int64_t step) {
    if (still_++ == 0) since_ = step;
    if (still_ != kStill || changed_ < kChanged) return false;
    changed_ = 0;
    return true;
  }
  // Of a step in which it changed: how many in a row it had not.
  std::int64_t note_change() {
    const std::int64_t still = std::exchange(still_, 0);
    changed_ = still > 0 ? 1 : changed_ + 1;
    return still;
  }
  // Nobody knows whether it changed.
  void forget_still() { still_ = 0; }
  std::int64_t since() const { return since_; }  // the first step of the last that had none

 private:
  std::int64_t changed_ = 0;
  std::int64_t still_ = 0;  // after those
  std::int64_t since_ = 0;
};

}  // namespace trainmon::detect
