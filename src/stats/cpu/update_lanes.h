// The element formula of stats/update.h. As vectors.h: for the sources compiled once per level.
#pragma once

#include "stats/cpu/check_kernels.h"
#include "stats/cpu/lanes.h"

namespace trainmon::cpu {
namespace {

inline Floats square_root(Floats x) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Floats)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  return (Floats)_mm256_sqrt_ps((__m256)x);
#elif defined(__x86_64__)
  return (Floats)_mm_sqrt_ps((__m128)x);
#else
  for (int i = 0; i < static_cast<int>(sizeof x / sizeof x[0]); ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}
inline Doubles square_root(Doubles x) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Doubles)_mm512_maskz_sqrt_pd(0xff, (__m512d)x);
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  return (Doubles)_mm256_sqrt_pd((__m256d)x);
#elif defined(__x86_64__)
  return (Doubles)_mm_sqrt_pd((__m128d)x);
#else
  for (int i = 0; i < static_cast<int>(sizeof x / sizeof x[0]); ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
#endif
}

// `y`, `s`: whether the formula has them.
template <class Number, bool y, bool s>
void update_steps(const Number* const* in, const UpdateFactors& factors, std::int64_t n,
                  Number* out) {
  using Numbers = Vector<Number>;
  constexpr int kWidth = TRAINMON_VECTOR_BYTES / static_cast<int>(sizeof(Number));
  const auto a = static_cast<Number>(factors.a);
  const auto b = static_cast<Number>(factors.b);
  const auto c = static_cast<Number>(factors.c);
  const auto eps = static_cast<Number>(factors.eps);
  const auto step = [&](const Number* px, const Number* py, const Number* ps) {
    Numbers u = load<Numbers>(px) * a;
    if constexpr (y) u += load<Numbers>(py) * b;
    if constexpr (s) u /= square_root(load<Numbers>(ps)) * c + eps;
    return u;
  };
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Numbers u = step(in[0] + i, y ? in[1] + i : nullptr, s ? in[2] + i : nullptr);
    __builtin_memcpy(out + i, &u, sizeof u);
  }
  if (i == n) return;
  Number rest[3][kWidth] = {};
  for (int k = 0; k < 3; ++k) {
    if (in[k] == nullptr) continue;
    __builtin_memcpy(rest[k], in[k] + i, static_cast<std::size_t>(n - i) * sizeof(Number));
  }
  const Numbers u = step(rest[0], rest[1], rest[2]);
  __builtin_memcpy(out + i, &u, static_cast<std::size_t>(n - i) * sizeof(Number));
}

template <class Number>
void update(const Number* const* in, const UpdateFactors& factors, std::int64_t n, Number* out) {
  const bool y = in[1] != nullptr;
  if (in[2] == nullptr) {
    return y ? update_steps<Number, true, false>(in, factors, n, out)
             : update_steps<Number, false, false>(in, factors, n, out);
  }
  return y ? update_steps<Number, true, true>(in, factors, n, out)
           : update_steps<Number, false, true>(in, factors, n, out);
}

}  // namespace
}  // namespace trainmon::cpu
