// Fingerprint and sketch of the elements that a block kernel has in its registers. As vectors.h:
// for the sources compiled once per level, and all names are local to the file that includes this
// one.
#pragma once

#include "stats/check_keys.h"
#include "stats/cpu/lanes.h"

namespace trainmon::cpu {
namespace {

static_assert(kSketchLanes == kLanes && kSketchStep == kStep);

using Words = Vector<std::uint64_t>;
using Columns = Vector<std::int32_t>;
constexpr int kRowBytes = 4 * kFingerprintColumns;
constexpr int kRowVectors = kRowBytes / TRAINMON_VECTOR_BYTES;

// In every lane, lower half times lower half plus upper half times upper half.
inline Columns multiply_halves(Columns x, std::uint32_t factors) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Columns)_mm512_madd_epi16((__m512i)x, _mm512_set1_epi32(static_cast<int>(factors)));
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  return (Columns)_mm256_madd_epi16((__m256i)x, _mm256_set1_epi32(static_cast<int>(factors)));
#elif defined(__x86_64__)
  return (Columns)_mm_madd_epi16((__m128i)x, _mm_set1_epi32(static_cast<int>(factors)));
#else
  return (x << 16 >> 16) * static_cast<std::int16_t>(factors) +
         (x >> 16) * static_cast<std::int16_t>(factors >> 16);
#endif
}

// The lower halves of the lanes multiplied, as signed numbers; those of b are positive.
inline Words multiply_lower(Words a, Words b) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Words)_mm512_maskz_mul_epi32(0xff, (__m512i)a, (__m512i)b);
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  return (Words)_mm256_mul_epi32((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
  // As unsigned numbers, which are 2^32 too large where the sign is set.
  const auto negative = (Words)((Columns)a >> 31) & b;
  return (Words)_mm_mul_epu32((__m128i)a, (__m128i)b) - (negative << 32);
#else
  using Integers = Vector<std::int64_t>;
  return (Words)(((Integers)a << 32 >> 32) * ((Integers)b << 32 >> 32));
#endif
}

// sum + a * b for a product that is exact, so that every level agrees.
inline Doubles add_exact_product(Doubles sum, Doubles a, Doubles b) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)sum);
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  return (Doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)sum);
#else
  return sum + a * b;
#endif
}
inline Floats add_exact_product(Floats sum, Floats a, Floats b) {
#if defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 64
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__x86_64__) && TRAINMON_VECTOR_BYTES == 32
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
  return sum + a * b;
#endif
}

// The fingerprint of groups that follow each other.
class FingerprintLanes {
 public:
  explicit FingerprintLanes(std::uint64_t first_group)
      : block_(first_group / kFingerprintGroups), group_(first_group % kFingerprintGroups) {}

  // Rows from `row` on of the group.
  template <int rows>
  void add(const void* data, int row) {
    const auto* p = static_cast<const char*>(data);
    for (int i = 0; i < rows; ++i) {
      for (int k = 0; k < kRowVectors; ++k, p += TRAINMON_VECTOR_BYTES) {
        columns_[k] += multiply_halves(load<Columns>(p), kFingerprintFactors.rows[row + i]);
      }
    }
  }
  // Due after the rows of a group.
  void end_group() {
    const auto* factors = kFingerprintFactors.columns + group_ * kFingerprintColumns;
    for (int k = 0; k < kRowVectors; ++k) {
      const auto factor = load<Words>(factors + k * (kFingerprintColumns / kRowVectors));
      const auto x = (Words)columns_[k];
      block_sum_ += multiply_lower(x, factor) + multiply_lower(x >> 32, factor >> 32);
      columns_[k] = Columns{};
    }
    if (++group_ == kFingerprintGroups) end_block();
  }
  std::uint64_t finish() {
    if (group_ != 0) end_block();
    std::uint64_t sum = 0;
    for (int i = 0; i < TRAINMON_VECTOR_BYTES / 8; ++i) sum += sum_[i];
    return sum;
  }

 private:
  void end_block() {
    sum_ += block_sum_ * fingerprint_block_factor(block_);
    block_sum_ = Words{};
    ++block_;
    group_ = 0;
  }

  Columns columns_[kRowVectors] = {};
  Words block_sum_ = {};
  Words sum_ = {};
  std::uint64_t block_;
  std::uint64_t group_;
};

// Walks a whole block for the checks; `first` is the index of its first element in the full tensor,
// a multiple of kSketchBlock.
template <class Element>
class CheckLanes {
 public:
  explicit CheckLanes(std::int64_t first)
      : fingerprint_(static_cast<std::uint64_t>(first) * sizeof(Element) / (4 * kFingerprintGroup)),
        block_(static_cast<std::uint64_t>(first) / kSketchBlock) {}

  // The next kSketchBlock elements: step(p) adds kStep of them to `sum`. The sums at the changes of
  // the sign say what was added between, so only the changes cost. Adds the elements with their
  // signs to `signed_sum`.
  template <class Lanes, int count, class Step>
  void block(const Element* p, const Lanes (&sum)[count], Lanes (&signed_sum)[count], Step step) {
    static_assert(kSketchMinus == 0b1100'0100);  // changes after the steps 1, 2 and 5
    constexpr int kRows = kStep * static_cast<int>(sizeof(Element)) / kRowBytes;  // of a step
    using Number = std::remove_cvref_t<decltype(sum[0][0])>;
    Lanes before[count];
    Lanes turned[count] = {};  // the last sum, less the one before it, plus the one before that
    for (int k = 0; k < count; ++k) before[k] = sum[k];
#pragma GCC unroll 1  // the registers would not do for more
    for (int i = 0; i < kSketchBlock / kStep; ++i, p += kStep) {
      step(p);
      fingerprint_.template add<kRows>(p, i * kRows % kFingerprintRows);
      if ((i + 1) * kRows % kFingerprintRows == 0) fingerprint_.end_group();
      if (i == 1 || i == 2 || i == 5) {
        for (int k = 0; k < count; ++k) turned[k] = sum[k] - turned[k];
      }
    }
    const Lanes sign = Lanes{} + static_cast<Number>(sketch_block_sign(block_++));
    for (int k = 0; k < count; ++k) {
      turned[k] = add_exact_product(-(before[k] + sum[k]), turned[k], Lanes{} + Number{2});
      signed_sum[k] = add_exact_product(signed_sum[k], turned[k], sign);
    }
  }
  std::uint64_t fingerprint() {
    return fingerprint_.finish();
  }

 private:
  FingerprintLanes fingerprint_;
  std::uint64_t block_;
};

}  // namespace
}  // namespace trainmon::cpu
