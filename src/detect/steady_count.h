// A count that steps have alike for a while, and then another one.
#pragma once

#include <cstdint>

namespace trainmon::detect {

class SteadyCount {
 public:
  static constexpr std::int64_t kAlike = 16, kOther = 8;  // steps in a row

  // Of the next step. True once: kOther steps had the same, and before them kAlike another one.
  bool note(std::int32_t count, std::int64_t step) {
    if (count == last_) {
      ++alike_;
    } else {
      if (alike_ >= kAlike) usual_ = last_;
      last_ = count;
      alike_ = 1;
      since_ = step;
    }
    if (usual_ < 0 || count == usual_ || alike_ != kOther || is_said_) return false;
    return is_said_ = true;
  }
  std::int32_t usual() const { return usual_; }
  std::int32_t last() const { return last_; }
  std::int64_t alike() const { return alike_; }  // steps in a row with the last one
  std::int64_t since() const { return since_; }  // the first step with the last one

 private:
  std::int32_t usual_ = -1;
  std::int32_t last_ = -1;
  std::int64_t alike_ = 0;
  std::int64_t since_ = 0;
  bool is_said_ = false;
};

}  // namespace trainmon::detect
