// Work that may take a share of a core, and no more.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>

namespace trainmon::serve {

class Pace {
 public:
  using Clock = std::chrono::steady_clock;

  // Not more often than each `least`, and not more than `share` of the time of one core as
  // `cpu_clock` tells it. That is CLOCK_THREAD_CPUTIME_ID, or CLOCK_PROCESS_CPUTIME_ID for work
  // on several threads.
  Pace(double share, std::chrono::milliseconds least, clockid_t cpu_clock)
      : share_(share), least_(least), cpu_clock_(cpu_clock) {}

  bool is_due() const { return Clock::now() >= next_; }
  template <typename Work>
  void spend(const Work& work) {
    const double before = cpu_seconds();
    work();
    const std::chrono::duration<double> rest((cpu_seconds() - before) / share_);
    next_ = Clock::now() +
            std::max<Clock::duration>(least_, std::chrono::duration_cast<Clock::duration>(rest));
  }

 private:
  double cpu_seconds() const {
    timespec now{};
    ::clock_gettime(cpu_clock_, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }

  const double share_;
  const std::chrono::milliseconds least_;
  const clockid_t cpu_clock_;
  Clock::time_point next_;
};

}  // namespace trainmon::serve
