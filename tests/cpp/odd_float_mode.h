// A floating-point mode that no kernel may use: flushes subnormal numbers, rounds towards zero.
#pragma once

#include <cstdint>
#include <utility>

namespace trainmon::test {

#if defined(__x86_64__) || defined(__aarch64__)
#define TRAINMON_HAS_ODD_FLOAT_MODE 1
class OddFloatMode {
 public:
  // Control and status: MXCSR twice, or FPCR and FPSR.
  using Registers = std::pair<std::uint64_t, std::uint64_t>;

  OddFloatMode() : before_(read()) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(0x1f80 | 0x8040 | 0x6000);
#else
    const std::uint64_t mode = std::uint64_t{1} << 24 | std::uint64_t{3} << 22;  // FZ, RMode RZ
    __asm__ __volatile__("msr fpcr, %0" ::"r"(mode) : "memory");
#endif
  }
  ~OddFloatMode() {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(static_cast<unsigned>(before_.first));
#else
    __asm__ __volatile__("msr fpcr, %0" ::"r"(before_.first) : "memory");
#endif
  }
  OddFloatMode(const OddFloatMode&) = delete;
  OddFloatMode& operator=(const OddFloatMode&) = delete;

  static Registers read() {
#if defined(__x86_64__)
    const std::uint64_t both = __builtin_ia32_stmxcsr();
    return {both, both};
#else
    Registers now;
    __asm__ __volatile__("mrs %0, fpcr\n\tmrs %1, fpsr"
                         : "=r"(now.first), "=r"(now.second)::"memory");
    return now;
#endif
  }

 private:
  Registers before_;
};
#endif

}  // namespace trainmon::test
