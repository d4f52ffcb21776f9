// Alerts as lines for a person: some at once, a storm as a number.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "trainmon/record.h"

namespace trainmon {

// The wording of one line.
using AlertText = std::function<std::string(const Alert&, const Series&)>;

// "rank 3: deviation: grad_reduced fc.weight: norm 16 is above ..., step 12".
AlertText plain_alert_text(int rank);

// Not thread-safe: for the writer thread. Never throws.
class AlertConsole {
 public:
  using Clock = std::chrono::steady_clock;

  explicit AlertConsole(AlertText text, int lines_per_second = 20);

  // A line, or, beyond `lines_per_second`, one more for the next "... and N more alerts".
  void tell(const Alert& alert, const Series& series,
            Clock::time_point now = Clock::now()) noexcept;
  // Says how many were held back, once their second is over or, with `all`, at once. To be called
  // now and then, and at the end.
  void catch_up(bool all, Clock::time_point now = Clock::now()) noexcept;

 private:
  const AlertText text_;
  const int lines_per_second_;
  Clock::time_point second_{};
  int lines_ = 0;
  std::int64_t held_back_ = 0;
};

}  // namespace trainmon
