// The floating-point mode that every kernel expects.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trainmon::cpu {

// Round to nearest and keep subnormal numbers, whatever the training set
// (torch.set_flush_denormal); the caller's mode and flags come back as they were.
class FloatMode {
 public:
  FloatMode() : before_(get()) { set(0x1f80); }
  ~FloatMode() { set(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  static unsigned get() {
    return _mm_getcsr();
  }
  static void set(unsigned mode) {
    _mm_setcsr(mode);
  }
#else
  static unsigned get() {
    return 0;
  }
  static void set(unsigned) {}
#endif
  unsigned before_;
};

}  // namespace trainmon::cpu
