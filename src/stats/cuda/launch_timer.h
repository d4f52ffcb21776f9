// How long launches take on the device, by events around them.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "stats/cuda/driver.h"

namespace trainmon::cuda {

// Not thread-safe; the context is current. Nothing waits. A call of the driver that fails costs the
// time of its launch.
class LaunchTimer {
 public:
  // Launches are timed from now on, or no more.
  void turn(bool on) { is_on_ = on; }
  void before_launch(const Driver& driver, Stream stream);
  void after_launch(const Driver& driver, Stream stream);
  // Seconds that all launches took which were made while it was on, once the device is done with
  // them, and once only. Beyond kMost launches these are as long as the first ones.
  std::optional<double> take(const Driver& driver);

  static constexpr std::size_t kMost = 256;

 private:
  struct Pair {
    Event begin = nullptr;
    Event end = nullptr;
  };
  bool is_on_ = false;
  std::vector<Pair> pairs_;  // made once
  std::size_t timed_ = 0;    // of them
  std::size_t launches_ = 0;
  std::size_t done_ = 0;
  bool has_begun_ = false;
};

}  // namespace trainmon::cuda
