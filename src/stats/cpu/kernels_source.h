// The one source of the block kernels, compiled once per instruction-set level by the file that
// defines TRAINMON_VECTOR_BYTES and TRAINMON_KERNELS and includes it.
//
// Nothing here may use an inline function of another header (vectors.h has none but local ones):
// the linker would keep one copy of it, perhaps the one compiled for AVX-512, for the whole
// program.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "stats/cpu/kernels.h"
#include "stats/cpu/vectors.h"

namespace trainmon::cpu {
namespace {

constexpr int kLanes = 16;                           // float64 lanes, the same on every level
constexpr int kDoubles = TRAINMON_VECTOR_BYTES / 8;  // per vector register
constexpr int kParts = kLanes / kDoubles;            // registers that hold the lanes
constexpr int kStep = 32;                            // elements per turn of the main loop
constexpr int kPrefetchBytes = 2048;

template <class T>
using PerDouble = typename VectorOf<T, kDoubles* static_cast<int>(sizeof(T))>::type;
using Doubles = Vector<double>;

template <class V>
inline V lesser(V a, V b) {
  return a < b ? a : b;
}
template <class V>
inline V greater(V a, V b) {
  return a > b ? a : b;
}

// The next kDoubles elements as float64. Intrinsics where there are any: gcc 12 turns
// __builtin_convertvector to a wider type into halves of halves.
inline Doubles widen_float32(const float* p) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Doubles)_mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(p));
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  return (Doubles)_mm256_cvtps_pd(_mm_loadu_ps(p));
#elif defined(__x86_64__)
  return (Doubles)_mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i*)p)));
#else
  return __builtin_convertvector(load<PerDouble<float>>(p), Doubles);
#endif
}
inline Doubles widen_bfloat16(const std::uint16_t* p) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return (Doubles)_mm512_maskz_cvtps_pd(0xff, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  const __m128i bits = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i*)p));
  return (Doubles)_mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(bits, 16)));
#elif defined(__x86_64__)
  const __m128i bits = _mm_cvtsi32_si128(load<std::int32_t>(p));
  return (Doubles)_mm_cvtps_pd(_mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), bits)));
#else
  const auto bits =
      __builtin_convertvector(load<PerDouble<std::uint16_t>>(p), PerDouble<std::uint32_t>) << 16;
  return __builtin_convertvector((PerDouble<float>)bits, Doubles);
#endif
}

// sum + x^2, for x with at most 26 significant bits. The square of such an x is exact in float64,
// so a fused multiply-add rounds as a multiplication and an addition do, and every level agrees.
inline Doubles add_exact_square(Doubles sum, Doubles x) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Doubles)_mm512_fmadd_pd((__m512d)x, (__m512d)x, (__m512d)sum);
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  return (Doubles)_mm256_fmadd_pd((__m256d)x, (__m256d)x, (__m256d)sum);
#else
  return sum + x * x;
#endif
}

// counter + 1 in every lane where value < limit.
template <class V>
inline V count_less(V counter, V value, V limit) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  const __m512i ones = _mm512_set1_epi32(-1);
  if constexpr (sizeof(value[0]) == 4) {
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

struct Lanes {
  Doubles part[kParts];
};

// Lane i takes the elements i, i + 16, ...; the tree below is part of the definition of a sum.
inline double total(const double* lane) {
  double half[8];
  for (int i = 0; i < 8; ++i) half[i] = lane[i] + lane[i + 8];
  for (int i = 0; i < 4; ++i) half[i] += half[i + 4];
  return (half[0] + half[2]) + (half[1] + half[3]);
}

struct Float32 {
  using Element = float;
  static Doubles widen(const Element* p) { return widen_float32(p); }
  static Doubles add_square(Doubles sum, Doubles x) { return add_exact_square(sum, x); }
  static double widen_one(const Element* p) { return static_cast<double>(load<float>(p)); }

  struct Extremes {
    using Integers = Vector<std::int32_t>;
    static constexpr int kWidth = TRAINMON_VECTOR_BYTES / 4;
    Vector<float> min = {};
    Vector<float> max = {};
    Integers zeros = {};
    Vector<std::uint32_t> smallest = {};  // magnitude - 1
    Integers threshold = {};

    Extremes(const Element* p, std::uint32_t below) {
      min = min + load<float>(p);
      max = min;
      smallest = ~smallest;
      threshold = threshold + static_cast<std::int32_t>(below);
    }
    void take(const Element* p) {
      for (int i = 0; i < kStep; i += kWidth) {
        const auto value = load<Vector<float>>(p + i);
        const Integers magnitude = load<Integers>(p + i) & 0x7fffffff;
        min = lesser(value, min);
        max = greater(value, max);
        zeros = count_less(zeros, magnitude, threshold);
        smallest = lesser((Vector<std::uint32_t>)magnitude - 1, smallest);
      }
    }
    // `done` elements from `p` were taken, `n` are in the block.
    void finish(const Element* p, std::int64_t done, std::int64_t n, BlockSums& out) const {
      float low = min[0], high = max[0];
      bool any_subnormal = done < n;
      for (int i = 0; i < kWidth; ++i) {
        low = lesser(min[i], low);
        high = greater(max[i], high);
        out.zeros += zeros[i];
        any_subnormal |= smallest[i] < 0x7fffff;
      }
      for (std::int64_t i = done; i < n; ++i) {
        const float value = load<float>(p + i);
        low = lesser(value, low);
        high = greater(value, high);
        out.zeros += (load<std::int32_t>(p + i) & 0x7fffffff) < threshold[0];
      }
      if (any_subnormal) {
        for (std::int64_t i = 0; i < n; ++i) {
          out.subnormals += (load<std::uint32_t>(p + i) & 0x7fffffffu) - 1u < 0x7fffffu;
        }
      }
      out.min = static_cast<double>(low);
      out.max = static_cast<double>(high);
    }
  };
};

struct Bfloat16 {
  using Element = std::uint16_t;
  static Doubles widen(const Element* p) { return widen_bfloat16(p); }
  static Doubles add_square(Doubles sum, Doubles x) { return add_exact_square(sum, x); }
  static double number(std::uint32_t bits) {
    bits <<= 16;
    return static_cast<double>(load<float>(&bits));
  }
  static double widen_one(const Element* p) { return number(load<Element>(p)); }

  // Works on the sixteen bits. As unsigned integers the negative numbers come last and in falling
  // order, so the extremes of the bits, signed and unsigned, give those of the numbers.
  struct Extremes {
    using Signed = Vector<std::int16_t>;
    using Unsigned = Vector<std::uint16_t>;
    static constexpr int kWidth = TRAINMON_VECTOR_BYTES / 2;
    Signed most = {};
    Unsigned first = {};
    Unsigned last = {};
    Signed zeros = {};
    Unsigned smallest = {};  // magnitude - 1
    Signed threshold = {};

    Extremes(const Element* p, std::uint32_t below) {
      first = first + load<Element>(p);
      last = first;
      most = (Signed)first;
      smallest = ~smallest;
      threshold = threshold + static_cast<std::int16_t>(below);
    }
    void take(const Element* p) {
      for (int i = 0; i < kStep; i += kWidth) {
        const auto bits = load<Unsigned>(p + i);
        const Unsigned magnitude = bits & 0x7fff;
        most = greater((Signed)bits, most);
        first = lesser(bits, first);
        last = greater(bits, last);
        zeros = count_less(zeros, (Signed)magnitude, threshold);
        smallest = lesser(magnitude - 1, smallest);
      }
    }
    void finish(const Element* p, std::int64_t done, std::int64_t n, BlockSums& out) const {
      std::int16_t top = most[0];
      std::uint16_t begin = first[0], end = last[0];
      bool any_subnormal = done < n;
      for (int i = 0; i < kWidth; ++i) {
        top = greater(most[i], top);
        begin = lesser(first[i], begin);
        end = greater(last[i], end);
        out.zeros += zeros[i];
        any_subnormal |= smallest[i] < 0x7f;
      }
      for (std::int64_t i = done; i < n; ++i) {
        const auto bits = load<Element>(p + i);
        top = greater(static_cast<std::int16_t>(bits), top);
        begin = lesser(bits, begin);
        end = greater(bits, end);
        out.zeros += static_cast<std::int16_t>(bits & 0x7fff) < threshold[0];
      }
      if (any_subnormal) {
        for (std::int64_t i = 0; i < n; ++i) {
          out.subnormals += (load<Element>(p + i) & 0x7fffu) - 1u < 0x7fu;
        }
      }
      const bool no_negative = end < 0x8000;
      const bool no_positive = top < 0;
      out.min = number(no_negative ? begin : end);
      out.max = number(no_positive ? begin : static_cast<std::uint16_t>(top));
    }
  };
};

struct Float64 {
  using Element = double;
  static Doubles widen(const Element* p) { return load<Doubles>(p); }
  static Doubles add_square(Doubles sum, Doubles x) { return sum + x * x; }
  static double widen_one(const Element* p) { return *p; }

  struct Extremes {
    Doubles min = {};
    Doubles max = {};
    static constexpr int kWidth = kDoubles;

    Extremes(const Element* p, std::uint32_t) {
      min = min + *p;
      max = min;
    }
    void take(const Element* p) {
      for (int i = 0; i < kStep; i += kWidth) {
        const auto value = load<Doubles>(p + i);
        min = lesser(value, min);
        max = greater(value, max);
      }
    }
    void finish(const Element* p, std::int64_t done, std::int64_t n, BlockSums& out) const {
      double low = min[0], high = max[0];
      for (int i = 0; i < kWidth; ++i) {
        low = lesser(min[i], low);
        high = greater(max[i], high);
      }
      for (std::int64_t i = done; i < n; ++i) {
        low = lesser(p[i], low);
        high = greater(p[i], high);
      }
      out.min = low;
      out.max = high;
    }
  };
};

template <class Format>
BlockSums block(const void* data, std::int64_t n, std::uint32_t threshold) {
  const auto* p = static_cast<const typename Format::Element*>(data);
  Lanes sum = {};
  Lanes sum_sq = {};
  typename Format::Extremes extremes(p, threshold);
  std::int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    constexpr int kStepBytes = kStep * static_cast<int>(sizeof *p);
    for (int line = 0; line < kStepBytes; line += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(p + i) + kPrefetchBytes + line);
    }
    for (int j = 0; j < kStep; j += kLanes) {
      for (int k = 0; k < kParts; ++k) {
        const Doubles x = Format::widen(p + i + j + k * kDoubles);
        sum.part[k] += x;
        sum_sq.part[k] = Format::add_square(sum_sq.part[k], x);
      }
    }
    extremes.take(p + i);
  }
  double lane_sum[kLanes];
  double lane_sq[kLanes];
  __builtin_memcpy(lane_sum, &sum, sizeof lane_sum);
  __builtin_memcpy(lane_sq, &sum_sq, sizeof lane_sq);
  BlockSums out = {};
  extremes.finish(p, i, n, out);
  for (; i < n; ++i) {
    const double x = Format::widen_one(p + i);
    lane_sum[i % kLanes] += x;
    lane_sq[i % kLanes] += x * x;
  }
  out.sum = total(lane_sum);
  out.sum_sq = total(lane_sq);
  return out;
}

template <class Format>
CentredSums centred(const void* data, std::int64_t n, double centre) {
  const auto* p = static_cast<const typename Format::Element*>(data);
  Lanes sum = {};
  Lanes sum_sq = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kParts; ++k) {
      const Doubles x = Format::widen(p + i + k * kDoubles) - centre;
      sum.part[k] += x;
      sum_sq.part[k] += x * x;
    }
  }
  double lane_sum[kLanes];
  double lane_sq[kLanes];
  __builtin_memcpy(lane_sum, &sum, sizeof lane_sum);
  __builtin_memcpy(lane_sq, &sum_sq, sizeof lane_sq);
  for (; i < n; ++i) {
    const double x = Format::widen_one(p + i) - centre;
    lane_sum[i % kLanes] += x;
    lane_sq[i % kLanes] += x * x;
  }
  return {total(lane_sum), total(lane_sq)};
}

}  // namespace

const Kernels TRAINMON_KERNELS = {
    block<Float32>,
    block<Bfloat16>,
    [](const double* data, std::int64_t n) { return block<Float64>(data, n, 0); },
    centred<Float32>,
    centred<Bfloat16>,
    [](const double* data, std::int64_t n, double centre) {
      return centred<Float64>(data, n, centre);
    },
};

}  // namespace trainmon::cpu
