// The arithmetic of one thread and what becomes of it: the same on the host, where tests run it.
//
// A chunk is summed by kThreads threads: thread t takes the vectors t, t + kThreads, ... in order,
// then the elements behind the last whole vector. The threads' sums are added in a fixed tree, so
// results depend neither on the device nor on when a block ran.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "model/both.h"
#include "model/merge.h"
#include "stats/cuda/element.h"
#include "stats/cuda/work.h"

namespace trainmon::cuda {

inline constexpr double kInfinity = __builtin_huge_val();

// Of finite elements; with a NaN or an infinity among them sum_sq is not finite and the rest has no
// meaning.
template <class Real>
struct Sums {
  using Bits = std::conditional_t<sizeof(Real) == 8, std::uint64_t, std::uint32_t>;
  double sum = 0.0;
  double sum_sq = 0.0;
  Real min = static_cast<Real>(kInfinity);
  Real max = static_cast<Real>(-kInfinity);
  Bits least = ~Bits{0};  // the bits of the smallest magnitude but zero, less one: so zero is none
  std::uint32_t zeros = 0;
};

// The lesser of `least` and the bits of a magnitude, less one.
TRAINMON_BOTH std::uint32_t lesser_size(std::uint32_t least, std::uint32_t size) {
#if defined(__CUDA_ARCH__)
  return __viaddmin_u32(size, ~0u, least);
#else
  return size - 1 < least ? size - 1 : least;
#endif
}
TRAINMON_BOTH std::uint64_t lesser_size(std::uint64_t least, std::uint64_t size) {
  return size - 1 < least ? size - 1 : least;
}

TRAINMON_BOTH float absolute(float x) {
  return bits_as<float>(bits_as<std::uint32_t>(x) & 0x7fffffffu);
}
TRAINMON_BOTH double absolute(double x) {
  return x < 0.0 ? -x : x;
}

// The bits in Real of the smallest normal number of the format; and that number.
template <class Format>
TRAINMON_BOTH auto least_normal() {
  if constexpr (sizeof(typename Format::Real) == 8) {
    return std::uint64_t{1} << 52;
  } else {
    return std::uint32_t{Format::kMinNormal};
  }
}
template <class Format>
TRAINMON_BOTH typename Format::Real smallest_normal() {
  return bits_as<typename Format::Real>(least_normal<Format>());
}

// eps as the format compares with it: rounded up once, so that the comparison stays exact.
TRAINMON_BOTH float threshold(float, double eps) {
  if (!(eps > 0.0)) return 0.0f;
  const auto near = static_cast<float>(eps);
  return static_cast<double>(near) < eps ? bits_as<float>(bits_as<std::uint32_t>(near) + 1) : near;
}
TRAINMON_BOTH double threshold(double, double eps) {
  return eps;
}

TRAINMON_BOTH void take(Sums<float>& sums, float x, float eps) {
  const auto wide = static_cast<double>(x);
  sums.sum += wide;
  sums.sum_sq = fma(wide, wide, sums.sum_sq);
  sums.min = fminf(sums.min, x);
  sums.max = fmaxf(sums.max, x);
  sums.least = lesser_size(sums.least, bits_as<std::uint32_t>(x) & 0x7fffffffu);
  sums.zeros += fabsf(x) < eps ? 1u : 0u;
}
TRAINMON_BOTH void take(Sums<double>& sums, double x, double eps) {
  sums.sum += x;
  sums.sum_sq = fma(x, x, sums.sum_sq);
  sums.min = fmin(sums.min, x);
  sums.max = fmax(sums.max, x);
  sums.least = lesser_size(sums.least, bits_as<std::uint64_t>(x) & ~std::uint64_t{0} >> 1);
  sums.zeros += fabs(x) < eps ? 1u : 0u;
}

template <class Real>
TRAINMON_BOTH void add(Sums<Real>& into, const Sums<Real>& from) {
  into.sum += from.sum;
  into.sum_sq += from.sum_sq;
  into.min = from.min < into.min ? from.min : into.min;
  into.max = into.max < from.max ? from.max : into.max;
  into.least = from.least < into.least ? from.least : into.least;
  into.zeros += from.zeros;
}

// Takes the elements of one thread, in order.
template <class Format>
class Accumulator {
 public:
  using Real = typename Format::Real;
  TRAINMON_BOTH explicit Accumulator(double eps) : eps_(threshold(Real{}, eps)) {}
  TRAINMON_BOTH void vector(const std::uint32_t* word) {
    Real x[Format::kPerVector];
    Format::decode(word, x);
    for (int i = 0; i < Format::kPerVector; ++i) take(sums_, x[i], eps_);
  }
  TRAINMON_BOTH void one(Real x) { take(sums_, x, eps_); }
  TRAINMON_BOTH Sums<Real> sums() const { return sums_; }

 private:
  Real eps_;
  Sums<Real> sums_;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// Sixteen-bit floats, two at a time but for the sums: extremes, and counts as numbers of the
// format, which holds every integer up to 256.
template <class Format, class Pair>
class PairAccumulator {
 public:
  __device__ explicit PairAccumulator(double eps)
      : eps_(threshold(float{}, eps)), eps_pair_(Pair::round_up(eps_)) {}
  __device__ void vector(const std::uint32_t* word) {
    float x[8];
    Format::decode(word, x);
    std::uint32_t count = 0;
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t size = word[i] & 0x7fff7fffu;
      min_ = Pair::min(min_, word[i]);
      max_ = Pair::max(max_, word[i]);
      least_ = __viaddmin_u16x2(size, ~0u, least_);
      count = Pair::add(count, Pair::is_less(size, eps_pair_));
    }
    for (int i = 0; i < 8; ++i) {
      const auto wide = static_cast<double>(x[i]);
      sums_.sum += wide;
      sums_.sum_sq = fma(wide, wide, sums_.sum_sq);
    }
    sums_.zeros += static_cast<std::uint32_t>(Pair::low(count) + Pair::high(count));
  }
  __device__ void one(float x) { take(sums_, x, eps_); }
  __device__ Sums<float> sums() const {
    Sums<float> out = sums_;
    out.min = fminf(out.min, fminf(Pair::low(min_), Pair::high(min_)));
    out.max = fmaxf(out.max, fmaxf(Pair::low(max_), Pair::high(max_)));
    for (const std::uint32_t least : {least_ & 0xffffu, least_ >> 16}) {
      if (least == 0xffffu) continue;
      const float size = Pair::low(least + 1);
      out.least = lesser_size(out.least, bits_as<std::uint32_t>(size));
    }
    return out;
  }

 private:
  float eps_;
  std::uint32_t eps_pair_;
  std::uint32_t min_ = Pair::kInfinities;
  std::uint32_t max_ = Pair::kInfinities | 0x80008000u;
  std::uint32_t least_ = ~0u;  // as in the sums
  Sums<float> sums_;
};

#define TRAINMON_PAIR_OPERATIONS(TYPE)                                        \
  __device__ static std::uint32_t min(std::uint32_t a, std::uint32_t b) {     \
    std::uint32_t out;                                                        \
    asm("min." TYPE " %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));             \
    return out;                                                               \
  }                                                                           \
  __device__ static std::uint32_t max(std::uint32_t a, std::uint32_t b) {     \
    std::uint32_t out;                                                        \
    asm("max." TYPE " %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));             \
    return out;                                                               \
  }                                                                           \
  __device__ static std::uint32_t add(std::uint32_t a, std::uint32_t b) {     \
    std::uint32_t out;                                                        \
    asm("add.rn." TYPE " %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));          \
    return out;                                                               \
  }                                                                           \
  __device__ static std::uint32_t is_less(std::uint32_t a, std::uint32_t b) { \
    std::uint32_t out;                                                        \
    asm("set.lt." TYPE "." TYPE " %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b)); \
    return out;                                                               \
  }

struct BfloatPair {
  static constexpr std::uint32_t kInfinities = 0x7f807f80u;
  TRAINMON_PAIR_OPERATIONS("bf16x2")
  __device__ static float low(std::uint32_t pair) { return bits_as<float>(pair << 16); }
  __device__ static float high(std::uint32_t pair) { return bits_as<float>(pair & 0xffff0000u); }
  __device__ static std::uint32_t round_up(float eps) {
    const std::uint32_t up = (bits_as<std::uint32_t>(eps) + 0xffffu) >> 16;
    return up | up << 16;
  }
};
struct HalfPair {
  static constexpr std::uint32_t kInfinities = 0x7c007c00u;
  TRAINMON_PAIR_OPERATIONS("f16x2")
  __device__ static float low(std::uint32_t pair) { return half_to_float(pair & 0xffffu); }
  __device__ static float high(std::uint32_t pair) { return half_to_float(pair >> 16); }
  __device__ static std::uint32_t round_up(float eps) {
    unsigned short up;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(up) : "f"(eps));
    if (half_to_float(up) < eps) ++up;
    return up | static_cast<std::uint32_t>(up) << 16;
  }
};
#undef TRAINMON_PAIR_OPERATIONS

template <>
class Accumulator<Bfloat16> : public PairAccumulator<Bfloat16, BfloatPair> {
 public:
  using PairAccumulator::PairAccumulator;
};
template <>
class Accumulator<Float16> : public PairAccumulator<Float16, HalfPair> {
 public:
  using PairAccumulator::PairAccumulator;
};
#endif

// Sixteen bytes from memory; kAligned when they may be loaded at once.
template <bool kAligned, int kItemBytes>
TRAINMON_BOTH void load_vector(const std::byte* p, std::uint32_t* word) {
#if defined(__CUDA_ARCH__)
  if constexpr (kAligned) {
    const uint4 vector = __ldg(reinterpret_cast<const uint4*>(p));
    word[0] = vector.x;
    word[1] = vector.y;
    word[2] = vector.z;
    word[3] = vector.w;
  } else if constexpr (kItemBytes >= 4) {
    for (int i = 0; i < 4; ++i) word[i] = reinterpret_cast<const std::uint32_t*>(p)[i];
  } else if constexpr (kItemBytes == 2) {
    for (int i = 0; i < 4; ++i) {
      const auto* half = reinterpret_cast<const std::uint16_t*>(p) + 2 * i;
      word[i] = half[0] | static_cast<std::uint32_t>(half[1]) << 16;
    }
  } else {
    const auto* byte = reinterpret_cast<const std::uint8_t*>(p);
    for (int i = 0; i < 4; ++i) {
      word[i] = byte[4 * i] | static_cast<std::uint32_t>(byte[4 * i + 1]) << 8 |
                static_cast<std::uint32_t>(byte[4 * i + 2]) << 16 |
                static_cast<std::uint32_t>(byte[4 * i + 3]) << 24;
    }
  }
#else
  memcpy(word, p, 16);
#endif
}

// The element behind the last whole vector that is this thread's, if any.
template <class Format, class Out>
TRAINMON_BOTH void last_element(const std::byte* data, int n, int thread, Out&& out) {
  const int last = n / Format::kPerVector * Format::kPerVector + thread;
  if (last < n) out.one(Format::one(data + last * (16 / Format::kPerVector)));
}

// Hands this thread's elements of a chunk that is one run of memory to `out`, in order.
template <class Format, bool kAligned, class Out>
TRAINMON_BOTH void each_element_of(const std::byte* data, int n, int thread, Out&& out) {
  constexpr int kItemBytes = 16 / Format::kPerVector;
  const int vectors = n / Format::kPerVector;
  for (int v = thread; v < vectors; v += kThreads) {
    std::uint32_t word[4];
    load_vector<kAligned, kItemBytes>(data + v * 16, word);
    out.vector(word);
  }
  last_element<Format>(data, n, thread, out);
}
template <class Format, class Out>
TRAINMON_BOTH void each_element(const std::byte* data, std::int64_t n, int thread, Out&& out) {
  if (reinterpret_cast<std::uintptr_t>(data) % 16 == 0) {
    each_element_of<Format, true>(data, static_cast<int>(n), thread, out);
  } else {
    each_element_of<Format, false>(data, static_cast<int>(n), thread, out);
  }
}

// For passes that look at each element.
template <class Format, class Look>
struct Each {
  Look look;
  TRAINMON_BOTH void vector(const std::uint32_t* word) {
    typename Format::Real x[Format::kPerVector];
    Format::decode(word, x);
    for (int i = 0; i < Format::kPerVector; ++i) look(x[i]);
  }
  TRAINMON_BOTH void one(typename Format::Real x) { look(x); }
};
template <class Format, class Look>
TRAINMON_BOTH void visit(const std::byte* data, std::int64_t n, int thread, Look look) {
  each_element<Format>(data, n, thread, Each<Format, Look>{look});
}

template <class Format>
TRAINMON_BOTH Sums<typename Format::Real> sums_of(const std::byte* data, std::int64_t n, int thread,
                                                  double eps) {
  Accumulator<Format> accumulator(eps);
  each_element<Format>(data, n, thread, accumulator);
  return accumulator.sums();
}

// Non-zero elements below the smallest normal number of the format; asked for only where there is
// one.
template <class Format>
TRAINMON_BOTH std::uint32_t subnormals_of(const std::byte* data, std::int64_t n, int thread) {
  using Real = typename Format::Real;
  std::uint32_t count = 0;
  visit<Format>(data, n, thread, [&](Real x) {
    count += absolute(x) < smallest_normal<Format>() && x != Real{0} ? 1u : 0u;
  });
  return count;
}

// Sums about a point near the mean.
struct Centred {
  double sum = 0.0;
  double sum_sq = 0.0;
};
TRAINMON_BOTH void add(Centred& into, const Centred& from) {
  into.sum += from.sum;
  into.sum_sq += from.sum_sq;
}

template <class Format>
TRAINMON_BOTH Centred centred_of(const std::byte* data, std::int64_t n, int thread, double centre) {
  Centred sums;
  visit<Format>(data, n, thread, [&](typename Format::Real x) {
    const double away = static_cast<double>(x) - centre;
    sums.sum += away;
    sums.sum_sq = fma(away, away, sums.sum_sq);
  });
  return sums;
}

// Whether these sums describe the elements; else they are looked at one by one.
TRAINMON_BOTH bool plain(const Sums<float>& sums) {
  return is_finite(sums.sum_sq);
}
TRAINMON_BOTH bool plain(const Sums<double>& sums) {
  if (!is_finite(sums.sum_sq)) return false;
  const double largest = greater_of(absolute(sums.min), absolute(sums.max));
  return largest == 0.0 || (largest > 0x1p-400 && largest < 0x1p400);
}

// Below this share of the sum of squares, the second moment left by subtraction has lost digits and
// is summed again about the mean.
inline constexpr double kCancelled = 0x1p-10;

template <class Real>
TRAINMON_BOTH RowState state_of(const Sums<Real>& sums, std::int64_t n) {
  const auto size = static_cast<double>(n);
  RowState state;
  state.count = n;
  state.zeros = sums.zeros;
  state.sum = sums.sum;
  state.mean = sums.sum / size;
  state.sum_sq = sums.sum_sq;
  state.m2 = sums.sum_sq - sums.sum * (sums.sum / size);
  state.min = static_cast<double>(sums.min) + 0.0;  // -0.0 becomes 0.0
  state.max = static_cast<double>(sums.max) + 0.0;
  state.absmax = greater_of(absolute(state.min), absolute(state.max));
  return state;
}
// What a chunk needs besides its sums, as bits.
inline constexpr unsigned kCare = 1;        // element by element: not all finite, or out of range
inline constexpr unsigned kCentre = 2;      // m2 about the mean
inline constexpr unsigned kSubnormals = 4;  // their number
template <class Format>
TRAINMON_BOTH unsigned needs(const Sums<typename Format::Real>& sums, const RowState& state) {
  if (!plain(sums)) return kCare;
  unsigned more = 0;
  if (state.m2 < kCancelled * state.sum_sq) more |= kCentre;
  if (sums.least < least_normal<Format>() - 1) more |= kSubnormals;
  return more;
}
TRAINMON_BOTH double second_moment(const Centred& sums, std::int64_t n) {
  return greater_of(0.0, sums.sum_sq - sums.sum * (sums.sum / static_cast<double>(n)));
}

}  // namespace trainmon::cuda
