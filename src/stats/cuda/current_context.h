// What is set for a moment around calls of the driver.
#pragma once

#include "stats/cuda/driver.h"

namespace trainmon::cuda {

// The primary context of the device, current for a moment. Where it cannot be (`status` is not 0)
// the driver must not be called: another context may be current.
class InContext {
 public:
  InContext(const Driver& driver, Context context) : driver_(driver) {
    status_ = driver.context_push(context);
  }
  ~InContext() {
    Context popped = nullptr;
    if (status_ == 0) driver_.context_pop(&popped);
  }
  Status status() const { return status_; }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const Driver& driver_;
  Status status_;
};

// Memory may be allocated although some stream of the process is being captured.
class Relaxed {
 public:
  explicit Relaxed(const Driver& driver) : driver_(driver), mode_(kCaptureRelaxed) {
    driver_.exchange_mode(&mode_);
  }
  ~Relaxed() { driver_.exchange_mode(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  const Driver& driver_;
  int mode_;
};

}  // namespace trainmon::cuda
