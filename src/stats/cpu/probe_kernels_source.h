// The one source of the probe's kernels, compiled once per instruction-set level by the file that
// defines TRAINMON_VECTOR_BYTES and TRAINMON_KERNELS and includes it.
//
// Nothing here may use an inline function of another header (vectors.h has none but local ones).

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>

#include "stats/cpu/probe_kernels.h"
#include "stats/cpu/vectors.h"

namespace trainmon::cpu {
namespace {

constexpr int kSignStep = 32;  // elements per turn: one word of bits

// Bit i is set where lane i of a comparison is true.
template <class Compared>
inline std::uint32_t bits_of(Compared lanes) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  if constexpr (sizeof(lanes[0]) == 8) {
    return static_cast<std::uint32_t>(_mm256_movemask_pd((__m256d)lanes));
  } else if constexpr (sizeof(lanes[0]) == 4) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps((__m256)lanes));
  } else {
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128((__m256i)lanes),
                                          _mm256_extracti128_si256((__m256i)lanes, 1));
    return static_cast<std::uint32_t>(_mm_movemask_epi8(bytes));
  }
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 16
  if constexpr (sizeof(lanes[0]) == 8) {
    return static_cast<std::uint32_t>(_mm_movemask_pd((__m128d)lanes));
  } else if constexpr (sizeof(lanes[0]) == 4) {
    return static_cast<std::uint32_t>(_mm_movemask_ps((__m128)lanes));
  } else {
    const __m128i bytes = _mm_packs_epi16((__m128i)lanes, _mm_setzero_si128());
    return static_cast<std::uint32_t>(_mm_movemask_epi8(bytes));
  }
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < static_cast<int>(sizeof lanes / sizeof(lanes[0])); ++i) {
    bits |= static_cast<std::uint32_t>(lanes[i] & 1) << i;
  }
  return bits;
#endif
}

// Floating-point numbers as the integers that their bits are: positive ones lie between 1 and the
// infinity, NaN beyond, negative ones below 0. No mode of the processor makes a subnormal number 0.
template <class Bits, Bits sign_bit>
struct AsIntegers {
  using Element = Bits;
  using Lanes = Vector<Bits>;
  Bits infinity;

  std::uint32_t positive(Lanes x) const {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
    const __m512i zero = _mm512_setzero_si512();
    if constexpr (sizeof(Bits) == 4) {
      return _mm512_mask_cmplt_epi32_mask(_mm512_cmplt_epi32_mask(zero, (__m512i)x), (__m512i)x,
                                          _mm512_set1_epi32(infinity + 1));
    } else {
      return _mm512_mask_cmplt_epi16_mask(_mm512_cmplt_epi16_mask(zero, (__m512i)x), (__m512i)x,
                                          _mm512_set1_epi16(static_cast<Bits>(infinity + 1)));
    }
#else
    return bits_of((x > 0) & (x < static_cast<Bits>(infinity + 1)));
#endif
  }
  std::uint32_t negative(Lanes x) const {
    return positive(x ^ sign_bit);
  }
};
using Float32Bits = AsIntegers<std::int32_t, static_cast<std::int32_t>(0x80000000u)>;
using HalfBits = AsIntegers<std::int16_t, static_cast<std::int16_t>(0x8000)>;

struct Doubles {
  using Element = double;
  using Lanes = Vector<double>;
  std::uint32_t positive(Lanes x) const {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
    return _mm512_cmp_pd_mask((__m512d)x, _mm512_setzero_pd(), _CMP_GT_OQ);
#else
    return bits_of(x > 0.0);
#endif
  }
  std::uint32_t negative(Lanes x) const {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
    return _mm512_cmp_pd_mask((__m512d)x, _mm512_setzero_pd(), _CMP_LT_OQ);
#else
    return bits_of(x < 0.0);
#endif
  }
};

// The bits of kSignStep elements, of one sign.
enum class Sign { positive, negative };
template <Sign sign, class Format>
inline std::uint32_t sign_word(const Format& format, const typename Format::Element* p) {
  constexpr int kWidth = TRAINMON_VECTOR_BYTES / static_cast<int>(sizeof *p);
  std::uint32_t word = 0;
  for (int i = 0; i < kSignStep; i += kWidth) {
    const auto x = load<typename Format::Lanes>(p + i);
    word |= (sign == Sign::positive ? format.positive(x) : format.negative(x)) << i;
  }
  return word;
}

// These kernels find their block in the cache, so the memory would rest meanwhile. Step i of a
// walk over `n` elements at `p` asks for as much of what follows them.
constexpr std::int64_t kLine = 64;
template <std::int64_t elements, class Element>
inline void prefetch_next(const Element* p, std::int64_t n, std::int64_t i) {
  constexpr std::int64_t kBytes = elements * static_cast<std::int64_t>(sizeof(Element)) / 2;
  const char* next = reinterpret_cast<const char*>(p + n) + i / elements * kBytes;
  for (std::int64_t line = 0; line < kBytes; line += kLine) __builtin_prefetch(next + line);
}

template <class Format>
void signs(const Format& format, const void* data, std::int64_t n, unsigned char* positive,
           unsigned char* negative) {
  using Element = typename Format::Element;
  const auto* p = static_cast<const Element*>(data);
  std::int64_t i = 0;
  if (negative == nullptr) {
    for (; i + kSignStep <= n; i += kSignStep) {
      prefetch_next<kSignStep>(p, n, i);
      const std::uint32_t word = sign_word<Sign::positive>(format, p + i);
      __builtin_memcpy(positive + i / 8, &word, sizeof word);
    }
  } else {
    for (; i + kSignStep <= n; i += kSignStep) {
      prefetch_next<kSignStep>(p, n, i);
      const std::uint32_t word = sign_word<Sign::positive>(format, p + i);
      __builtin_memcpy(positive + i / 8, &word, sizeof word);
      const std::uint32_t other = sign_word<Sign::negative>(format, p + i);
      __builtin_memcpy(negative + i / 8, &other, sizeof other);
    }
  }
  if (i == n) return;
  Element rest[kSignStep] = {};
  __builtin_memcpy(rest, p + i, static_cast<std::size_t>(n - i) * sizeof(Element));
  const auto bytes = static_cast<std::size_t>((n - i + 7) / 8);
  const std::uint32_t word = sign_word<Sign::positive>(format, rest);
  __builtin_memcpy(positive + i / 8, &word, bytes);
  if (negative == nullptr) return;
  const std::uint32_t other = sign_word<Sign::negative>(format, rest);
  __builtin_memcpy(negative + i / 8, &other, bytes);
}

// counter + 1 in every lane where x <= limit, or x == limit.
enum class Where { at_most, equal };
template <Where where, class Counter, class V>
inline Counter count_where(Counter counter, V x, V limit) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  constexpr int kCompare = where == Where::at_most ? _CMP_LE_OQ : _CMP_EQ_OQ;
  if constexpr (sizeof(x[0]) == 4) {
    const __mmask16 lanes = _mm512_cmp_ps_mask((__m512)x, (__m512)limit, kCompare);
    return (Counter)_mm512_mask_sub_epi32((__m512i)counter, lanes, (__m512i)counter,
                                          _mm512_set1_epi32(-1));
  } else {
    const __mmask8 lanes = _mm512_cmp_pd_mask((__m512d)x, (__m512d)limit, kCompare);
    return (Counter)_mm512_mask_sub_epi64((__m512i)counter, lanes, (__m512i)counter,
                                          _mm512_set1_epi64(-1));
  }
#else
  return counter - (where == Where::at_most ? x <= limit : x == limit);
#endif
}

// How numbers lie in memory, and reading them one by one or a register full.
template <class Number>
struct Plain {
  using Element = Number;
  static Vector<Number> lanes(const Element* p) { return load<Vector<Number>>(p); }
  static Number one(const Element* p) { return load<Number>(p); }
};
struct Bfloat16 {
  using Element = std::uint16_t;
  static Vector<float> lanes(const Element* p) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
    // Masked, for gcc 12 takes the register behind the plain one for uninitialised.
    const __m512i bits = _mm512_maskz_cvtepu16_epi32(0xffff, load<__m256i>(p));
    return (Vector<float>)((Vector<std::uint32_t>)bits << 16);
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
    return (Vector<float>)((Vector<std::uint32_t>)_mm256_cvtepu16_epi32(load<__m128i>(p)) << 16);
#elif defined(__x86_64__)
    const __m128i bits = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return (Vector<float>)_mm_unpacklo_epi16(_mm_setzero_si128(), bits);
#else
    using Bits = VectorOf<std::uint16_t, TRAINMON_VECTOR_BYTES / 2>::type;
    return (Vector<float>)(__builtin_convertvector(load<Bits>(p), Vector<std::uint32_t>) << 16);
#endif
  }
  static float one(const Element* p) {
    const std::uint32_t bits = static_cast<std::uint32_t>(load<Element>(p)) << 16;
    return load<float>(&bits);
  }
};

template <class Number, class Counted, class Format = Plain<Number>>
struct Counting {
  using Element = typename Format::Element;
  using Lanes = Vector<Number>;
  using Counter = Vector<Counted>;
  static constexpr int kWidth = TRAINMON_VECTOR_BYTES / static_cast<int>(sizeof(Number));

  static std::int64_t total(Counter counter) {
    std::int64_t sum = 0;
    for (int i = 0; i < kWidth; ++i) sum += counter[i];
    return sum;
  }

  // `k` bounds in one walk over the elements; the first walk counts zeros as well.
  template <int k, bool with_zeros>
  static std::int64_t walk(const Element* p, std::int64_t n, const Number* bounds,
                           std::int64_t* out) {
    Lanes limit[k + 1] = {};
    Counter counter[k + 1] = {};
    for (int j = 0; j < k; ++j) limit[j] = limit[j] + bounds[j];
    std::int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      const Lanes x = Format::lanes(p + i);
      for (int j = 0; j < k; ++j) counter[j] = count_where<Where::at_most>(counter[j], x, limit[j]);
      if (with_zeros) counter[k] = count_where<Where::equal>(counter[k], x, limit[k]);
    }
    for (int j = 0; j < k; ++j) out[j] += total(counter[j]);
    std::int64_t zeros = total(counter[k]);
    for (; i < n; ++i) {
      const Number x = Format::one(p + i);
      for (int j = 0; j < k; ++j) out[j] += x <= bounds[j];
      if (with_zeros) zeros += x == Number{0};
    }
    return zeros;
  }

  static std::int64_t count(const void* data, std::int64_t n, const Number* bounds,
                            std::int64_t bound_count, std::int64_t* out) {
    const auto* p = static_cast<const Element*>(data);
    const std::int64_t first = bound_count % 4;
    std::int64_t zeros = 0;
    switch (first) {
      case 0:
        zeros = walk<0, true>(p, n, bounds, out);
        break;
      case 1:
        zeros = walk<1, true>(p, n, bounds, out);
        break;
      case 2:
        zeros = walk<2, true>(p, n, bounds, out);
        break;
      default:
        zeros = walk<3, true>(p, n, bounds, out);
    }
    for (std::int64_t j = first; j < bound_count; j += 4) {
      walk<4, false>(p, n, bounds + j, out + j);
    }
    return zeros;
  }
};

void float32_of_bfloat16(const void* data, std::int64_t n, float* out) {
  const auto* p = static_cast<const std::uint16_t*>(data);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = static_cast<std::uint32_t>(load<std::uint16_t>(p + i)) << 16;
    __builtin_memcpy(out + i, &bits, sizeof bits);
  }
}

void hash(const void* data, std::int64_t stripes, std::uint64_t* lanes) {
  using Words = Vector<std::uint64_t>;
  constexpr int kWidth = TRAINMON_VECTOR_BYTES / 8;
  constexpr int kParts = kHashLanes / kWidth;
  const auto* p = static_cast<const char*>(data);
  Words part[kParts];
  __builtin_memcpy(part, lanes, sizeof part);
  constexpr std::int64_t kStripe = kParts * sizeof(Words);
  for (std::int64_t i = 0; i < stripes * kStripe; i += kStripe) {
    prefetch_next<kStripe>(static_cast<const char*>(data), stripes * kStripe, i);
    for (int k = 0; k < kParts; ++k, p += sizeof(Words)) {
      part[k] = (part[k] ^ load<Words>(p)) * kHashFactor;
      part[k] ^= part[k] >> kHashShift;
    }
  }
  __builtin_memcpy(lanes, part, sizeof part);
}

}  // namespace

const ProbeKernels TRAINMON_KERNELS = {
    [](const void* data, std::int64_t n, unsigned char* positive, unsigned char* negative) {
      signs(Doubles{}, data, n, positive, negative);
    },
    [](const void* data, std::int64_t n, unsigned char* positive, unsigned char* negative) {
      signs(Float32Bits{0x7f800000}, data, n, positive, negative);
    },
    [](const void* data, std::int64_t n, std::int16_t infinity, unsigned char* positive,
       unsigned char* negative) { signs(HalfBits{infinity}, data, n, positive, negative); },
    float32_of_bfloat16,
    Counting<float, std::int32_t>::count,
    Counting<float, std::int32_t, Bfloat16>::count,
    Counting<double, std::int64_t>::count,
    hash,
};

}  // namespace trainmon::cpu
