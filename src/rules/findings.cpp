// Room is counted per optimizer and window, so that a storm costs the same at every step.
#include "rules/findings.h"

#include "base/text.h"

namespace trainmon {

bool Findings::has_room(std::int32_t optimizer, std::int64_t window) {
  Told& told = told_[optimizer];
  if (window > told.window) told = {window, 0};
  if (told.alerts >= telling_.most_per_step) return false;
  ++told.alerts;
  return true;
}

void Findings::end_batch(std::vector<Alert>& alerts) {
  if (rest_ == 0) return;
  first_of_rest_.count = rest_;
  if (rest_ > 1) {
    first_of_rest_.message += "; with it " + grouped(rest_ - 1) + " more that are only counted";
  }
  alerts.push_back(std::move(first_of_rest_));
  first_of_rest_ = {};
  rest_ = 0;
}

}  // namespace trainmon
