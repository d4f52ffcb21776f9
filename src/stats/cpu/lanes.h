// What the block kernels do with vectors, lane by lane. As vectors.h: for the sources compiled once
// per level, and all names are local to the file that includes this one.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <limits>
#include <type_traits>

#include "stats/cpu/kernels.h"
#include "stats/cpu/vectors.h"

namespace trainmon::cpu {
namespace {

constexpr int kLanes = 16;                           // float64 lanes, the same on every level
constexpr int kDoubles = TRAINMON_VECTOR_BYTES / 8;  // per vector register
constexpr int kParts = kLanes / kDoubles;            // registers that hold the lanes
constexpr int kStep = 32;                            // elements per turn of the main loops

template <class T>
using PerDouble = typename VectorOf<T, kDoubles* static_cast<int>(sizeof(T))>::type;
using Doubles = Vector<double>;
using Floats = Vector<float>;

template <class V>
inline V lesser(V a, V b) {
  return a < b ? a : b;
}
template <class V>
inline V greater(V a, V b) {
  return a > b ? a : b;
}

// The one number that `pick` leaves of all lanes, by halves. By value, so that the registers of a
// loop stay registers.
template <class T, int bytes, class Pick>
inline T reduce(typename VectorOf<T, bytes>::type lanes, Pick pick) {
  if constexpr (bytes > 16) {
    typename VectorOf<T, bytes / 2>::type half[2];
    __builtin_memcpy(half, &lanes, sizeof lanes);
    return reduce<T, bytes / 2>(pick(half[0], half[1]), pick);
  } else {
    T picked = lanes[0];
    for (int i = 1; i < bytes / static_cast<int>(sizeof(T)); ++i) {
      picked = pick(picked, static_cast<T>(lanes[i]));
    }
    return picked;
  }
}
template <class T>
inline T least(Vector<T> lanes) {
  return reduce<T, TRAINMON_VECTOR_BYTES>(lanes, [](auto a, auto b) { return lesser(a, b); });
}
template <class T>
inline T most(Vector<T> lanes) {
  return reduce<T, TRAINMON_VECTOR_BYTES>(lanes, [](auto a, auto b) { return greater(a, b); });
}

// The next kDoubles elements as float64. Intrinsics where there are any: gcc 12 turns
// __builtin_convertvector to a wider type into halves of halves.
inline Doubles widen(const float* p) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Doubles)_mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(p));
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  return (Doubles)_mm256_cvtps_pd(_mm_loadu_ps(p));
#elif defined(__x86_64__)
  return (Doubles)_mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i*)p)));
#else
  return __builtin_convertvector(load<PerDouble<float> >(p), Doubles);
#endif
}
inline Doubles widen(const double* p) {
  return load<Doubles>(p);
}
// The lower and the upper half of the lanes.
inline Doubles widen_lower(Floats x) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Doubles)_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, (__m512)x, 0));
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  return (Doubles)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x));
#elif defined(__x86_64__)
  return (Doubles)_mm_cvtps_pd((__m128)x);
#else
  return __builtin_convertvector(load<PerDouble<float> >(&x), Doubles);
#endif
}
inline Doubles widen_upper(Floats x) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Doubles)_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, (__m512)x, 1));
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  return (Doubles)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1));
#elif defined(__x86_64__)
  return (Doubles)_mm_cvtps_pd(_mm_movehl_ps((__m128)x, (__m128)x));
#else
  return __builtin_convertvector(
      load<PerDouble<float> >(reinterpret_cast<const char*>(&x) + sizeof(x) / 2), Doubles);
#endif
}

// sum + x^2 for an x whose square is exact: then a fused multiply-add rounds as a multiplication
// and an addition do, and every level agrees. In float64 that holds for numbers of 26 significant
// bits, in float32 for those of 12, away from the ends of its range.
inline Doubles add_exact_square(Doubles sum, Doubles x) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Doubles)_mm512_fmadd_pd((__m512d)x, (__m512d)x, (__m512d)sum);
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  return (Doubles)_mm256_fmadd_pd((__m256d)x, (__m256d)x, (__m256d)sum);
#else
  return sum + x * x;
#endif
}
inline Floats add_exact_square(Floats sum, Floats x) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Floats)_mm512_fmadd_ps((__m512)x, (__m512)x, (__m512)sum);
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  return (Floats)_mm256_fmadd_ps((__m256)x, (__m256)x, (__m256)sum);
#else
  return sum + x * x;
#endif
}

// The least magnitude of the lanes of a, b and smallest, which has none with a sign.
inline Floats least_magnitude(Floats a, Floats b, Floats smallest) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  const __m512 lesser_of_two = _mm512_range_ps((__m512)a, (__m512)b, 0x0a);
  return (Floats)_mm512_range_ps(lesser_of_two, (__m512)smallest, 0x0a);
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  // As integers, whose minima have more units than those of floats.
  using Bits = Vector<std::int32_t>;
  return (Floats)lesser(lesser((Bits)a & 0x7fffffff, (Bits)b & 0x7fffffff), (Bits)smallest);
#else
  const auto magnitude = [](Floats x) { return (Floats)((Vector<std::uint32_t>)x & 0x7fffffff); };
  return lesser(lesser(magnitude(a), magnitude(b)), smallest);
#endif
}
inline Doubles least_magnitude(Doubles a, Doubles b, Doubles smallest) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  const __m512d lesser_of_two = _mm512_range_pd((__m512d)a, (__m512d)b, 0x0a);
  return (Doubles)_mm512_range_pd(lesser_of_two, (__m512d)smallest, 0x0a);
#else
  const auto magnitude = [](Doubles x) {
    return (Doubles)((Vector<std::uint64_t>)x & 0x7fffffffffffffff);
  };
  return lesser(lesser(magnitude(a), magnitude(b)), smallest);
#endif
}

// counter + 1 in every lane where value < limit.
template <class V>
inline V count_less(V counter, V value, V limit) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  const __m512i ones = _mm512_set1_epi32(-1);
  if constexpr (sizeof(value[0]) == 8) {
    return (V)_mm512_mask_sub_epi64((__m512i)counter,
                                    _mm512_cmplt_epi64_mask((__m512i)value, (__m512i)limit),
                                    (__m512i)counter, ones);
  } else if constexpr (sizeof(value[0]) == 4) {
    return (V)_mm512_mask_sub_epi32((__m512i)counter,
                                    _mm512_cmplt_epi32_mask((__m512i)value, (__m512i)limit),
                                    (__m512i)counter, ones);
  } else {
    return (V)_mm512_mask_sub_epi16((__m512i)counter,
                                    _mm512_cmplt_epi16_mask((__m512i)value, (__m512i)limit),
                                    (__m512i)counter, ones);
  }
#else
  return counter - (value < limit);
#endif
}

// counter + 1 in every lane where bits has none of those of mask.
inline Vector<std::int16_t> count_without(Vector<std::int16_t> counter, Vector<std::int16_t> bits,
                                          Vector<std::int16_t> mask) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Vector<std::int16_t>)_mm512_mask_sub_epi16(
      (__m512i)counter, _mm512_testn_epi16_mask((__m512i)bits, (__m512i)mask), (__m512i)counter,
      _mm512_set1_epi32(-1));
#else
  return counter - ((bits & mask) == 0);
#endif
}

// Calls step(p) for every `length` elements; what is left at the end is copied and filled up with
// `padding` first.
template <int length = kStep, class Element, class Step>
inline void each_step(const Element* p, std::int64_t n, Element padding, Step step) {
  std::int64_t i = 0;
  for (; i + length <= n; i += length) step(p + i);
  if (i == n) return;
  Element rest[length];
  for (Element& element : rest) element = padding;
  __builtin_memcpy(rest, p + i, static_cast<std::size_t>(n - i) * sizeof(Element));
  step(rest);
}

// Calls each(p, i) for the vectors of a step, `width` elements each. What is summed and bounded
// vector by vector fits into sixteen registers. Loops over a step one after the other do not, and
// a bound in memory waits for itself.
template <int width, class Element, class Each>
inline void each_vector(const Element* p, Each each) {
  for (int i = 0; i < kStep; i += width) each(p + i, i / width);
}

template <class Element>
inline void prefetch(const Element* p) {
  constexpr int kStepBytes = kStep * static_cast<int>(sizeof(Element));
  const char* ahead = reinterpret_cast<const char*>(p) + kPrefetchBytes;
  for (int line = 0; line < kStepBytes; line += 64) __builtin_prefetch(ahead + line);
}

// A second look at a block, from the cache, where some magnitude is below the threshold or a normal
// number. `Signed` are the bits, `nearest` is the smallest magnitude; returns the smallest one
// other than 0.
template <class Signed>
Signed count_small(const void* data, std::int64_t n, Signed threshold, Signed min_normal,
                   Signed nearest, BlockSums& out) {
  using Unsigned = std::make_unsigned_t<Signed>;
  using Bits = Vector<Signed>;
  constexpr int kWidth = TRAINMON_VECTOR_BYTES / static_cast<int>(sizeof(Signed));
  constexpr Signed kMagnitude = std::numeric_limits<Signed>::max();
  const auto* p = static_cast<const Signed*>(data);
  const Bits below = Bits{} + threshold;
  const Bits normal = Bits{} + min_normal;
  constexpr int kCounters = 4;  // each addition waits for the one before
  Bits zeros[kCounters] = {};
  Vector<Unsigned> smallest = ~Vector<Unsigned>{};  // magnitude - 1
  const auto look = [&](auto finds_smallest) {
    each_step<kCounters * kWidth>(p, n, kMagnitude, [&](const Signed* at) {
      for (int i = 0; i < kCounters; ++i) {
        const Bits magnitude = load<Bits>(at + i * kWidth) & kMagnitude;
        zeros[i] = count_less(zeros[i], magnitude, below);
        if constexpr (finds_smallest) {
          smallest = lesser((Vector<Unsigned>)magnitude - 1, smallest);
        }
      }
    });
    for (const Bits& counted : zeros) {
      for (int i = 0; i < kWidth; ++i) out.zeros += counted[i];
    }
  };
  if (nearest >= min_normal) {  // only small ones
    look(std::false_type{});
    return nearest;
  }
  look(std::true_type{});
  const auto nonzero = static_cast<Signed>(least<Unsigned>(smallest) + 1);
  if (nonzero >= min_normal) return nonzero;
  Bits less = {};
  Bits exact = {};
  each_step(p, n, kMagnitude, [&](const Signed* at) {
    for (int i = 0; i < kStep; i += kWidth) {
      const Bits magnitude = load<Bits>(at + i) & kMagnitude;
      less = count_less(less, magnitude, normal);
      exact = count_less(exact, magnitude, Bits{} + Signed{1});
    }
  });
  for (int i = 0; i < kWidth; ++i) out.subnormals += less[i] - exact[i];
  return nonzero;
}

// Lane i takes the elements i, i + 16, ...; the tree below is part of the definition of a sum.
inline double total(const double* lane) {
  double half[8];
  for (int i = 0; i < 8; ++i) half[i] = lane[i] + lane[i + 8];
  for (int i = 0; i < 4; ++i) half[i] += half[i + 4];
  return (half[0] + half[2]) + (half[1] + half[3]);
}

template <class Registers>
inline double total_of(const Registers& lanes) {
  static_assert(sizeof lanes == kLanes * sizeof(double));
  double lane[kLanes];
  __builtin_memcpy(lane, &lanes, sizeof lane);
  return total(lane);
}

}  // namespace
}  // namespace trainmon::cpu
