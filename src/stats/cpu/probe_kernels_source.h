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
    if constexpr (sizeof(Bits) == 4) {
      return _mm512_cmplt_epu32_mask((__m512i)(x - 1), _mm512_set1_epi32(infinity));
    } else {
      return _mm512_cmplt_epu16_mask((__m512i)(x - 1), _mm512_set1_epi16(infinity));
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

// The bits of kSignStep elements.
template <class Format>
inline std::uint32_t positive_word(const Format& format, const typename Format::Element* p) {
  constexpr int kWidth = TRAINMON_VECTOR_BYTES / static_cast<int>(sizeof *p);
  std::uint32_t word = 0;
  for (int i = 0; i < kSignStep; i += kWidth) {
    word |= format.positive(load<typename Format::Lanes>(p + i)) << i;
  }
  return word;
}
template <class Format>
inline std::uint32_t negative_word(const Format& format, const typename Format::Element* p) {
  constexpr int kWidth = TRAINMON_VECTOR_BYTES / static_cast<int>(sizeof *p);
  std::uint32_t word = 0;
  for (int i = 0; i < kSignStep; i += kWidth) {
    word |= format.negative(load<typename Format::Lanes>(p + i)) << i;
  }
  return word;
}

// The first of `count` bytes of a word, the least significant one first.
inline void store(std::uint32_t word, std::int64_t count, unsigned char* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<unsigned char>(word >> (8 * i));
}

template <class Format>
void signs(const Format& format, const void* data, std::int64_t n, unsigned char* positive,
           unsigned char* negative) {
  using Element = typename Format::Element;
  const auto* p = static_cast<const Element*>(data);
  std::int64_t i = 0;
  if (negative == nullptr) {
    for (; i + kSignStep <= n; i += kSignStep) {
      store(positive_word(format, p + i), 4, positive + i / 8);
    }
  } else {
    for (; i + kSignStep <= n; i += kSignStep) {
      store(positive_word(format, p + i), 4, positive + i / 8);
      store(negative_word(format, p + i), 4, negative + i / 8);
    }
  }
  if (i == n) return;
  Element rest[kSignStep] = {};
  __builtin_memcpy(rest, p + i, static_cast<std::size_t>(n - i) * sizeof(Element));
  const std::int64_t bytes = (n - i + 7) / 8;
  store(positive_word(format, rest), bytes, positive + i / 8);
  if (negative != nullptr) store(negative_word(format, rest), bytes, negative + i / 8);
}

// counter + 1 in every lane where x <= limit.
template <class Counter, class V>
inline Counter count_at_most(Counter counter, V x, V limit) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  if constexpr (sizeof(x[0]) == 4) {
    const __mmask16 where = _mm512_cmp_ps_mask((__m512)x, (__m512)limit, _CMP_LE_OQ);
    return (Counter)_mm512_mask_sub_epi32((__m512i)counter, where, (__m512i)counter,
                                          _mm512_set1_epi32(-1));
  } else {
    const __mmask8 where = _mm512_cmp_pd_mask((__m512d)x, (__m512d)limit, _CMP_LE_OQ);
    return (Counter)_mm512_mask_sub_epi64((__m512i)counter, where, (__m512i)counter,
                                          _mm512_set1_epi64(-1));
  }
#else
  return counter - (x <= limit);
#endif
}

template <class Number, class Counted>
struct Counting {
  using Lanes = Vector<Number>;
  using Counter = Vector<Counted>;
  static constexpr int kWidth = TRAINMON_VECTOR_BYTES / static_cast<int>(sizeof(Number));

  static std::int64_t total(Counter counter) {
    std::int64_t sum = 0;
    for (int i = 0; i < kWidth; ++i) sum += counter[i];
    return sum;
  }

  // `k` bounds in one walk over the elements.
  template <int k>
  static void at_most(const Number* p, std::int64_t n, const Number* bounds, std::int64_t* out) {
    Lanes limit[k] = {};
    Counter counter[k] = {};
    for (int j = 0; j < k; ++j) limit[j] = limit[j] + bounds[j];
    std::int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      const auto x = load<Lanes>(p + i);
      for (int j = 0; j < k; ++j) counter[j] = count_at_most(counter[j], x, limit[j]);
    }
    for (int j = 0; j < k; ++j) out[j] += total(counter[j]);
    for (; i < n; ++i) {
      for (int j = 0; j < k; ++j) out[j] += load<Number>(p + i) <= bounds[j];
    }
  }

  static std::int64_t zeros(const Number* p, std::int64_t n) {
    Counter counter = {};
    std::int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) counter = counter - (load<Lanes>(p + i) == Number{0});
    std::int64_t sum = total(counter);
    for (; i < n; ++i) sum += load<Number>(p + i) == Number{0};
    return sum;
  }

  static std::int64_t count(const void* data, std::int64_t n, const Number* bounds,
                            std::int64_t bound_count, std::int64_t* out) {
    const auto* p = static_cast<const Number*>(data);
    std::int64_t j = 0;
    for (; j + 4 <= bound_count; j += 4) at_most<4>(p, n, bounds + j, out + j);
    switch (bound_count - j) {
      case 3:
        at_most<3>(p, n, bounds + j, out + j);
        break;
      case 2:
        at_most<2>(p, n, bounds + j, out + j);
        break;
      case 1:
        at_most<1>(p, n, bounds + j, out + j);
    }
    return zeros(p, n);
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
  for (std::int64_t stripe = 0; stripe < stripes; ++stripe) {
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
    Counting<double, std::int64_t>::count,
    hash,
};

}  // namespace trainmon::cpu
