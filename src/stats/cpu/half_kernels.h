// The block kernels of 16-bit formats, and of 8-bit ones over them. As vectors.h: for the sources
// compiled once per level.
#pragma once

#include "stats/cpu/check_lanes.h"
#include "stats/cpu/lanes.h"

namespace trainmon::cpu {
namespace {

constexpr int kPairs = kStep * 4 / TRAINMON_VECTOR_BYTES;  // registers of kStep float32 numbers
constexpr int kFloats = TRAINMON_VECTOR_BYTES / 4;

// The elements of one vector of a 16-bit format as two of float32. fold() brings the sums so laid
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
  // For the sketch, whose lane i has the elements i and i + 16; the even lanes come first.
  static void fold_sketch(const Floats (&x)[kPairs], Doubles (&lane)[kParts]) {
    if constexpr (kPairs == 2) {
      for (int k = 0; k < 2; ++k) lane[k] += widen_lower(x[k]) + widen_upper(x[k]);
    } else {
      for (int k = 0; k < kPairs / 2; ++k) {
        const int at = k / 2 * 2 + k % 2 * (kParts / 2);
        lane[at] += widen_lower(x[k]) + widen_lower(x[k + kPairs / 2]);
        lane[at + 1] += widen_upper(x[k]) + widen_upper(x[k + kPairs / 2]);
      }
    }
  }
  static int sketch_lane(int i) { return i / 2 + i % 2 * (kLanes / 2); }
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
  static void fold_sketch(const Floats (&x)[kPairs], Doubles (&lane)[kParts]) {
    fold(x, lane);
  }
  static int sketch_lane(int i) {
    return i;
  }
  static double number(std::uint16_t bits) {
    const auto wide = (bits & 0x7fffu) << 13;
    const double value = static_cast<double>(load<float>(&wide)) * 0x1p112;
    return (bits & 0x8000) != 0 ? -value : value;
  }
};

// Sixteen bits a number, whose squares are exact in float32. They are summed in kStep lanes of
// float32, which go into float64 every kRun elements. The low bits of squares are not spread
// evenly. So what rounding takes does not average out, and longer runs lose more. Norms of
// bfloat16 are 1.1e-8 too small at most.
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
    if (Format::kCounts && threshold == 1) {
      return sums<true, false>(data, n, threshold, beyond, 0, nullptr);
    }
    return sums<false, false>(data, n, threshold, beyond, 0, nullptr);
  }
  static BlockSums checked(const void* data, std::int16_t threshold, std::int16_t beyond,
                           std::int64_t first, CheckSums& check) {
    if (Format::kCounts && threshold == 1) {
      return sums<true, true>(data, kBlock, threshold, beyond, first, &check);
    }
    return sums<false, true>(data, kBlock, threshold, beyond, first, &check);
  }

  // One function, for its steps share sums and counts that stay in registers.
  template <bool only_zero_is_below, bool checks>
  static BlockSums sums(const void* data, std::int64_t n, std::int16_t threshold,
                        std::int16_t beyond, std::int64_t first,
                        [[maybe_unused]] CheckSums* check) {
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
    CheckLanes<std::int16_t> lanes(first);
    Doubles signed_lanes[kParts] = {};
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
      const auto step = [&](const std::int16_t* from) {
        prefetch(from);
        each_vector<kWidth>(from, [&](const std::int16_t* at, int j) {
          bound(at, j);
          if constexpr (Format::kCounts) count(at, j);
          add(at, j);
        });
      };
      std::int64_t i = 0;
      if constexpr (checks) {
        Floats signed_run[kPairs] = {};
        for (; i < length; i += kSketchBlock) {
          lanes.block(run + i, sum, signed_run, step);
        }
        Format::fold_sketch(signed_run, signed_lanes);
      } else {
        for (; i + kStep <= length; i += kStep) step(run + i);
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
    if constexpr (checks) {
      check->fingerprint = lanes.fingerprint();
      double folded[kLanes];
      __builtin_memcpy(folded, &signed_lanes, sizeof folded);
      for (int i = 0; i < kLanes; ++i) check->lanes[i] = folded[Format::sketch_lane(i)];
    } else {
      if (summed < n) sum_run(std::false_type{}, p + summed, n - summed);
    }
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
}  // namespace trainmon::cpu
