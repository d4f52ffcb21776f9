// The one source of the block kernels, compiled once per instruction-set level by the file that
// defines TRAINMON_VECTOR_BYTES and TRAINMON_KERNELS and includes it.
//
// Nothing here may use an inline function of another header (vectors.h has none but local ones):
// the linker would keep one copy of it, perhaps the one compiled for AVX-512, for the whole
// program.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
  return __builtin_convertvector(load<PerDouble<float>>(p), Doubles);
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
  return __builtin_convertvector(load<PerDouble<float>>(&x), Doubles);
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
      load<PerDouble<float>>(reinterpret_cast<const char*>(&x) + sizeof(x) / 2), Doubles);
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
// vector by vector fits into sixteen registers; loops over a step one after the other do not, and a
// bound in memory waits for itself.
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

// float32 and float64, summed in float64.
template <class Number>
struct Wide {
  using Numbers = Vector<Number>;
  using Signed = std::conditional_t<sizeof(Number) == 4, std::int32_t, std::int64_t>;
  static constexpr int kWidth = TRAINMON_VECTOR_BYTES / static_cast<int>(sizeof(Number));
  static constexpr Signed kMinNormal = Signed{1} << (std::numeric_limits<Number>::digits - 1);

  static Doubles add_square(Doubles sum, Doubles x) {
    if constexpr (sizeof(Number) == 4) return add_exact_square(sum, x);
    return sum + x * x;
  }

  static BlockSums block(const void* data, std::int64_t n, Signed threshold) {
    const auto* p = static_cast<const Number*>(data);
    Doubles sum[kParts] = {};
    Doubles sum_sq[kParts] = {};
    Numbers low = Numbers{} + load<Number>(p);
    Numbers high = low;
    Numbers smallest = Numbers{} + std::numeric_limits<Number>::max();
    // By pairs of vectors, for chains of bounds half as long.
    constexpr int kPair = 2 * kWidth;
    const auto add = [&](const Number* at, int j) {
      for (int i = 0; i < kPair; i += kDoubles) {
        const int k = (j * kPair + i) / kDoubles % kParts;
        const Doubles x = widen(at + i);
        sum[k] += x;
        sum_sq[k] = add_square(sum_sq[k], x);
      }
    };
    const auto bound = [&](const Number* at, int) {
      const auto a = load<Numbers>(at);
      const auto b = load<Numbers>(at + kWidth);
      low = lesser(lesser(a, b), low);
      high = greater(greater(a, b), high);
      smallest = least_magnitude(a, b, smallest);
    };
    std::int64_t i = 0;
    for (; i + kStep <= n; i += kStep) {
      prefetch(p + i);
      each_vector<kPair>(p + i, [&](const Number* at, int j) {
        add(at, j);
        bound(at, j);
      });
    }
    each_step(p + i, n - i, Number{0}, [&](const Number* at) { each_vector<kPair>(at, add); });
    each_step(p + i, n - i, load<Number>(p),
              [&](const Number* at) { each_vector<kPair>(at, bound); });
    BlockSums out = {};
    out.sum = total_of(sum);
    out.sum_sq = total_of(sum_sq);
    out.min = static_cast<double>(least<Number>(low));
    out.max = static_cast<double>(most<Number>(high));
    const auto nearest = least<Number>(smallest);
    const auto bits = load<Signed>(&nearest);
    if (bits < (threshold > kMinNormal ? threshold : kMinNormal)) {
      count_small<Signed>(data, n, threshold, kMinNormal, bits, out);
    }
    return out;
  }

  static CentredSums centred(const void* data, std::int64_t n, double centre) {
    const auto* p = static_cast<const Number*>(data);
    Doubles sum[kParts] = {};
    Doubles sum_sq[kParts] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (int k = 0; k < kParts; ++k) {
        const Doubles x = widen(p + i + k * kDoubles) - centre;
        sum[k] += x;
        sum_sq[k] += x * x;
      }
    }
    double lane_sum[kLanes];
    double lane_sq[kLanes];
    __builtin_memcpy(lane_sum, &sum, sizeof lane_sum);
    __builtin_memcpy(lane_sq, &sum_sq, sizeof lane_sq);
    for (; i < n; ++i) {
      const double x = static_cast<double>(load<Number>(p + i)) - centre;
      lane_sum[i % kLanes] += x;
      lane_sq[i % kLanes] += x * x;
    }
    return {total(lane_sum), total(lane_sq)};
  }
};

constexpr int kPairs = kStep * 4 / TRAINMON_VECTOR_BYTES;  // registers of kStep float32 numbers
constexpr int kFloats = TRAINMON_VECTOR_BYTES / 4;

// The elements of one vector of a 16-bit format as two of float32; fold() brings the sums so laid
// out to kLanes float64 numbers, the same on every level.
struct Bfloat16 {
  // Squares of smaller numbers leave the range of float32, and sums of those of larger ones.
  static constexpr std::int16_t kLeast = (127 - 63) << 7;
  static constexpr std::int16_t kBeyond = (127 + 60) << 7;
  static constexpr std::int16_t kMinNormal = 0x80;
  static constexpr std::int64_t kRun = 1024;
  static constexpr bool kCounts = false;  // in a second look, where there are any

  // Even elements for k = 0, odd ones for 1.
  static Floats widen(const std::int16_t* p, int k) {
    const auto both = load<Vector<std::uint32_t>>(p);
    return (Floats)(k == 0 ? both << 16 : both & 0xffff0000u);
  }
  // Lane i: elements 2 i and 2 i + 1.
  static void fold(const Floats (&x)[kPairs], Doubles (&lane)[kParts]) {
    for (int k = 0; k < kPairs; k += 2) {
      lane[k] += widen_lower(x[k]) + widen_lower(x[k + 1]);
      lane[k + 1] += widen_upper(x[k]) + widen_upper(x[k + 1]);
    }
  }
  static double number(std::uint16_t bits) {
    const auto wide = static_cast<std::uint32_t>(bits) << 16;
    return static_cast<double>(load<float>(&wide));
  }
};

struct Float16 {
  using Integers = Vector<std::int32_t>;
  static constexpr std::int16_t kBeyond = 0x7c00;  // every square below is exact
  static constexpr std::int16_t kMinNormal = 0x400;
  static constexpr std::int64_t kRun = 256;
  static constexpr bool kCounts = true;  // its gradients are full of subnormal numbers

  // Sign-extended.
  static Integers widen_bits(const std::int16_t* p) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 16
    const __m128i bits = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return (Integers)_mm_unpacklo_epi16(bits, bits) >> 16;
#else
    using Halves = VectorOf<std::int16_t, TRAINMON_VECTOR_BYTES / 2>::type;
    return __builtin_convertvector(load<Halves>(p), Integers);
#endif
  }
  // The lower half for k = 0, the upper one for 1.
  static Floats widen(const std::int16_t* p, int k) {
    p += k * kFloats;
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, load<__m256i>(p));
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
    return (Floats)_mm256_cvtph_ps(load<__m128i>(p));
#else
    const Integers bits = widen_bits(p);
    const Integers magnitude = bits & 0x7fff;
    const Floats subnormal = __builtin_convertvector(magnitude, Floats) * 0x1p-24f;
    const Integers normal = (magnitude << 13) + (112 << 23);
    const Integers value = magnitude < 0x400 ? (Integers)subnormal : normal;
    return (Floats)(value | (bits & std::numeric_limits<std::int32_t>::min()));
#endif
  }
  // Lane i: elements i and i + 16.
  static void fold(const Floats (&x)[kPairs], Doubles (&lane)[kParts]) {
    for (int k = 0; k < kPairs / 2; ++k) {
      lane[2 * k] += widen_lower(x[k]) + widen_lower(x[k + kPairs / 2]);
      lane[2 * k + 1] += widen_upper(x[k]) + widen_upper(x[k + kPairs / 2]);
    }
  }
  static double number(std::uint16_t bits) {
    const auto wide = (bits & 0x7fffu) << 13;
    const double value = static_cast<double>(load<float>(&wide)) * 0x1p112;
    return (bits & 0x8000) != 0 ? -value : value;
  }
};

// Sixteen bits a number, whose squares are exact in float32: summed in kStep lanes of float32,
// which go into float64 every kRun elements. The low bits of squares are not spread evenly, so what
// rounding takes does not average out, and longer runs lose more: norms of bfloat16 are 1.1e-8 too
// small at most.
template <class Format>
struct Half {
  using Signed = Vector<std::int16_t>;
  using Unsigned = Vector<std::uint16_t>;
  static constexpr int kWidth = TRAINMON_VECTOR_BYTES / 2;
  static constexpr std::int16_t kExponent = 0x8000 - Format::kMinNormal;

  static std::int16_t least_magnitude(const std::int16_t* p, std::int64_t n) {
    Signed smallest = Signed{} + std::int16_t{0x7fff};
    each_step(p, n, std::int16_t{0x7fff}, [&](const std::int16_t* at) {
      for (int i = 0; i < kStep; i += kWidth) {
        smallest = lesser((Signed)(load<Signed>(at + i) & 0x7fff), smallest);
      }
    });
    return least<std::int16_t>(smallest);
  }

  // `beyond`: the first magnitude that has no place in the sums.
  static BlockSums block(const void* data, std::int64_t n, std::int16_t threshold,
                         std::int16_t beyond) {
    // eps is mostly below the smallest number: then one count says both.
    if (Format::kCounts && threshold == 1) return block<true>(data, n, threshold, beyond);
    return block<false>(data, n, threshold, beyond);
  }

  template <bool only_zero_is_below>
  static BlockSums block(const void* data, std::int64_t n, std::int16_t threshold,
                         std::int16_t beyond) {
    const auto* p = static_cast<const std::int16_t*>(data);
    Doubles lane_sum[kParts] = {};
    Doubles lane_sq[kParts] = {};
    // As unsigned integers the negative numbers come last and in falling order.
    Signed top = Signed{} + load<std::int16_t>(p);
    Unsigned last = (Unsigned)top;
    Signed smallest = top & 0x7fff;
    Signed zeros = {};
    Signed less = {};
    Signed exact_zeros = {};
    const auto bound = [&](const std::int16_t* at, int) {
      const auto bits = load<Signed>(at);
      top = greater(bits, top);
      last = greater((Unsigned)bits, last);
      if constexpr (!Format::kCounts) smallest = lesser((Signed)(bits & 0x7fff), smallest);
    };
    const auto count = [&](const std::int16_t* at, int) {
      const auto bits = load<Signed>(at);
      if (!only_zero_is_below) zeros = count_less(zeros, bits & 0x7fff, Signed{} + threshold);
      less = count_without(less, bits, Signed{} + kExponent);
      exact_zeros = count_without(exact_zeros, bits, Signed{} + std::int16_t{0x7fff});
    };
    // `whole`: of kRun elements. Its sums never leave the registers.
    const auto sum_run = [&](auto whole, const std::int16_t* run, std::int64_t length) {
      Floats sum[kPairs] = {};
      Floats sum_sq[kPairs] = {};
      const auto add = [&](const std::int16_t* at, int j) {
        for (int k = 0; k < 2; ++k) {
          const Floats x = Format::widen(at, k);
          sum[2 * j + k] += x;
          sum_sq[2 * j + k] = add_exact_square(sum_sq[2 * j + k], x);
        }
      };
      std::int64_t i = 0;
      for (; i + kStep <= length; i += kStep) {
        prefetch(run + i);
        each_vector<kWidth>(run + i, [&](const std::int16_t* at, int j) {
          bound(at, j);
          if constexpr (Format::kCounts) count(at, j);
          add(at, j);
        });
      }
      if constexpr (!whole) {
        const auto rest = [&](std::int16_t padding, auto each) {
          each_step(run + i, length - i, padding,
                    [&](const std::int16_t* at) { each_vector<kWidth>(at, each); });
        };
        rest(0, add);
        rest(load<std::int16_t>(p), bound);
        if constexpr (Format::kCounts) rest(0x7fff, count);
      }
      Format::fold(sum, lane_sum);
      Format::fold(sum_sq, lane_sq);
    };
    std::int64_t summed = 0;
    for (; summed + Format::kRun <= n; summed += Format::kRun) {
      sum_run(std::true_type{}, p + summed, Format::kRun);
    }
    if (summed < n) sum_run(std::false_type{}, p + summed, n - summed);
    BlockSums out = {};
    const auto positive = most<std::int16_t>(top);  // negative if there are no positive signs
    const auto negative = most<std::uint16_t>(last);
    std::int64_t zeros_of_either_sign = 0;
    std::int16_t nearest;  // the smallest magnitude
    if constexpr (Format::kCounts) {
      for (int i = 0; i < kWidth; ++i) {
        out.zeros += zeros[i];
        out.subnormals += less[i] - exact_zeros[i];
        zeros_of_either_sign += exact_zeros[i];
      }
      if (only_zero_is_below) out.zeros = zeros_of_either_sign;
      // Wanted for numbers of one sign only.
      const bool both_signs = negative >= 0x8000 && positive >= 0;
      nearest = both_signs || zeros_of_either_sign > 0 ? 0 : least_magnitude(p, n);
    } else {
      nearest = least<std::int16_t>(smallest);
    }
    const bool in_range = positive < beyond && negative < beyond + 0x8000;
    out.min = Format::number(negative >= 0x8000 ? negative : static_cast<std::uint16_t>(nearest));
    out.max = Format::number(positive >= 0 ? static_cast<std::uint16_t>(positive)
                                           : static_cast<std::uint16_t>(nearest | 0x8000));
    bool exact = in_range;
    if constexpr (!Format::kCounts) {
      if (in_range && nearest < (threshold > Format::kMinNormal ? threshold : Format::kMinNormal)) {
        nearest = count_small<std::int16_t>(data, n, threshold, Format::kMinNormal, nearest, out);
      }
      exact = in_range && nearest >= Format::kLeast;
    }
    out.sum = total_of(lane_sum);
    out.sum_sq = exact ? total_of(lane_sq) : std::numeric_limits<double>::infinity();
    return out;
  }
};

// 8-bit formats are float16 numbers with fewer bits, e4m3fn divided by 2^8.
template <bool e4m3fn>
BlockSums float8(const void* data, std::int64_t n, std::int16_t threshold) {
  const auto* p = static_cast<const std::uint8_t*>(data);
  std::uint16_t halves[kBlock];
  for (std::int64_t i = 0; i < n; ++i) {
    const unsigned bits = p[i];
    halves[i] =
        static_cast<std::uint16_t>(e4m3fn ? (bits & 0x80) << 8 | (bits & 0x7f) << 7 : bits << 8);
  }
  BlockSums out = Half<Float16>::block(halves, n, threshold, e4m3fn ? 0x7f << 7 : 0x7c00);
  if (e4m3fn) {
    out.sum *= 0x1p8;
    out.sum_sq *= 0x1p16;
    out.min *= 0x1p8;
    out.max *= 0x1p8;
  }
  return out;
}

}  // namespace

const Kernels TRAINMON_KERNELS = {
    Wide<float>::block,
    Wide<double>::block,
    [](const void* data, std::int64_t n, std::int16_t threshold) {
      return Half<Bfloat16>::block(data, n, threshold, Bfloat16::kBeyond);
    },
    [](const void* data, std::int64_t n, std::int16_t threshold) {
      return Half<Float16>::block(data, n, threshold, Float16::kBeyond);
    },
    float8<true>,
    float8<false>,
    Wide<float>::centred,
    Wide<double>::centred,
};

}  // namespace trainmon::cpu
