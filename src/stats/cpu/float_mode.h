// The floating-point mode that every kernel expects.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trainmon::cpu {

#if defined(__x86_64__)
// MXCSR: rounding, flushing, masks and the exceptions seen, in one register.
using FloatControl = unsigned;
inline constexpr FloatControl kPlainFloats = 0x1f80;
inline FloatControl float_control() {
  return _mm_getcsr();
}
inline void set_float_control(FloatControl mode) {
  _mm_setcsr(mode);
}
#elif defined(__aarch64__)
// FPCR (rounding, flushing, masks) and FPSR (exceptions seen). All 0 in FPCR is what a program
// starts with; the bits that others use differ by the version of the architecture.
struct FloatControl {
  std::uint64_t fpcr;
  std::uint64_t fpsr;
};
inline constexpr FloatControl kPlainFloats = {0, 0};
inline FloatControl float_control() {
  FloatControl mode;
  __asm__ __volatile__("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(mode.fpcr), "=r"(mode.fpsr)::"memory");
  return mode;
}
inline void set_float_control(FloatControl mode) {
  __asm__ __volatile__("msr fpcr, %0\n\tmsr fpsr, %1" ::"r"(mode.fpcr), "r"(mode.fpsr) : "memory");
}
#else
struct FloatControl {};
inline constexpr FloatControl kPlainFloats = {};
inline FloatControl float_control() {
  return {};
}
inline void set_float_control(FloatControl) {}
#endif

// Round to nearest and keep subnormal numbers, whatever the training set
// (torch.set_flush_denormal); the caller's mode and flags come back as they were.
class FloatMode {
 public:
  FloatMode() : before_(float_control()) { set_float_control(kPlainFloats); }
  ~FloatMode() { set_float_control(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  FloatControl before_;
};

}  // namespace trainmon::cpu
