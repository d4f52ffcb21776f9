// Which instructions this processor and its kernel offer, asked by `cpuid` itself:
// __builtin_cpu_supports answers "none" where the compiler's runtime leaves it out (zig's does).
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>

namespace trainmon {

struct CpuFeatures {
  bool sse42 = false;
  bool pclmul = false;
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, DQ and VL
  bool amd = false;
};

inline CpuFeatures ask_cpu() {
  CpuFeatures found;
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0) return found;
  found.amd = b == signature_AMD_ebx && c == signature_AMD_ecx && d == signature_AMD_edx;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
  found.sse42 = (c & bit_SSE4_2) != 0;
  found.pclmul = (c & bit_PCLMUL) != 0;
  const bool fma = (c & bit_FMA) != 0 && (c & bit_F16C) != 0;
  if ((c & bit_OSXSAVE) == 0) return found;
  // The wide registers count only where the kernel saves them.
  std::uint32_t saved = 0, high = 0;
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  const bool saves_ymm = (saved & 0x06) == 0x06;
  const bool saves_zmm = (saved & 0xE6) == 0xE6;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
  constexpr std::uint32_t kAvx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  found.avx2 = saves_ymm && fma && (b & bit_AVX2) != 0;
  found.avx512 = saves_zmm && found.avx2 && (b & kAvx512) == kAvx512;
  return found;
}

}  // namespace trainmon
#endif
