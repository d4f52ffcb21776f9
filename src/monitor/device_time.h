// What a recorded step costs a device: measured in one of a few steps, and taken for the others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "collect/collector.h"

namespace trainmon {

// Not thread-safe.
class DeviceTime {
 public:
  // A step has ended. Seconds of the device that its launches took: those of the last step that was
  // timed and is done. 0 before there is one, and where nothing was recorded.
  double after_step(bool recorded, Collector& collector) {
    if (const std::optional<double> took = collector.device_seconds()) {
      // Devices work side by side, and may tell at different steps.
      seconds_ = std::exchange(is_new_, false) ? *took : std::max(seconds_, *took);
    }
    if (recorded && is_timing_) {
      is_timing_ = false;
      collector.time_launches(false);
    } else if (!is_timing_ && (recorded_ % kBetween == 0)) {
      is_timing_ = is_new_ = true;
      collector.time_launches(true);
    }
    recorded_ += recorded ? 1 : 0;
    return recorded ? seconds_ : 0.0;
  }

 private:
  static constexpr int kBetween = 8;  // recorded steps from one that is timed to the next
  double seconds_ = 0.0;
  bool is_timing_ = false;
  bool is_new_ = false;  // no answer yet to what was timed last
  std::int64_t recorded_ = 0;
};

}  // namespace trainmon
