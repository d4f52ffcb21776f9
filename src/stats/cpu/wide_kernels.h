// The block kernels of float32 and float64. As vectors.h: for the sources compiled once per level.
#pragma once

#include "stats/cpu/check_lanes.h"
#include "stats/cpu/lanes.h"

namespace trainmon::cpu {
namespace {

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
    return sums<false>(data, n, threshold, 0, nullptr);
  }
  static BlockSums checked(const void* data, Signed threshold, std::int64_t first,
                           CheckSums& check) {
    return sums<true>(data, kBlock, threshold, first, &check);
  }

  template <bool checks>
  [[gnu::always_inline]] static inline BlockSums sums(const void* data, std::int64_t n,
                                                      Signed threshold, std::int64_t first,
                                                      [[maybe_unused]] CheckSums* check) {
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
    const auto step = [&](const Number* from) {
      prefetch(from);
      each_vector<kPair>(from, [&](const Number* at, int j) {
        add(at, j);
        bound(at, j);
      });
    };
    if constexpr (checks) {
      CheckLanes<Number> lanes(first);
      Doubles signed_lanes[kParts] = {};
      for (std::int64_t i = 0; i < kBlock; i += kSketchBlock) {
        lanes.block(p + i, sum, signed_lanes, step);
      }
      check->fingerprint = lanes.fingerprint();
      __builtin_memcpy(check->lanes, &signed_lanes, sizeof signed_lanes);
    } else {
      std::int64_t i = 0;
      for (; i + kStep <= n; i += kStep) step(p + i);
      each_step(p + i, n - i, Number{0}, [&](const Number* at) { each_vector<kPair>(at, add); });
      each_step(p + i, n - i, load<Number>(p),
                [&](const Number* at) { each_vector<kPair>(at, bound); });
    }
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

}  // namespace
}  // namespace trainmon::cpu
