#include "stats/cuda/launch_timer.h"

#include <utility>

#include "stats/cuda/current_context.h"

namespace trainmon::cuda {

void LaunchTimer::before_launch(const Driver& driver, Stream stream) {
  has_begun_ = false;
  if (!is_on_) return;
  ++launches_;
  if (timed_ == kMost) return;
  if (timed_ == pairs_.size()) {
    const Relaxed relaxed(driver);
    Pair pair;
    if (driver.event_create(&pair.begin, 0) != 0 || driver.event_create(&pair.end, 0) != 0) return;
    pairs_.push_back(pair);
  }
  has_begun_ = driver.event_record(pairs_[timed_].begin, stream) == 0;
}

void LaunchTimer::after_launch(const Driver& driver, Stream stream) {
  if (std::exchange(has_begun_, false) && driver.event_record(pairs_[timed_].end, stream) == 0) {
    ++timed_;
  }
}

std::optional<double> LaunchTimer::take(const Driver& driver) {
  if (is_on_ || launches_ == 0) return std::nullopt;
  const Relaxed relaxed(driver);
  Status status = 0;
  for (; done_ < timed_; ++done_) {
    status = driver.event_query(pairs_[done_].end);
    if (status == kNotReady) return std::nullopt;
    if (status != 0) break;
  }
  double ms = 0.0;
  for (std::size_t i = 0; i < timed_ && status == 0; ++i) {
    float one = 0.0f;
    status = driver.event_time(&one, pairs_[i].begin, pairs_[i].end);
    ms += static_cast<double>(one);
  }
  const auto timed = static_cast<double>(std::exchange(timed_, 0));
  const auto launches = static_cast<double>(std::exchange(launches_, 0));
  done_ = 0;
  if (status != 0 || timed == 0.0) return std::nullopt;
  return ms / 1e3 * (launches / timed);
}

}  // namespace trainmon::cuda
