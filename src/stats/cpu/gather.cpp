// Reads every element type, one loop per type.
#include "stats/cpu/gather.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace trainmon::cpu {
namespace {

// A binary floating-point format: the sign on top, then the magnitude, whose bits are in the order
// of the numbers. From kNonFinite on it is infinite (exactly that, if the format has infinities)
// or NaN.
template <class BitsType, BitsType sign, BitsType non_finite, BitsType min_normal>
struct Format {
  using Bits = BitsType;
  static constexpr Bits kSign = sign;
  static constexpr Bits kNonFinite = non_finite;
  static constexpr Bits kMinNormal = min_normal;
  static constexpr bool kHasInfinity = true;
};

struct Float64 : Format<std::uint64_t, 1ull << 63, 0x7ffull << 52, 1ull << 52> {
  static double value(Bits bits) { return std::bit_cast<double>(bits); }
};
struct Float32 : Format<std::uint32_t, 1u << 31, 0xffu << 23, 1u << 23> {
  static double value(Bits bits) { return static_cast<double>(std::bit_cast<float>(bits)); }
};
struct Bfloat16 : Format<std::uint16_t, 0x8000, 0x7f80, 0x80> {
  static double value(Bits bits) { return Float32::value(static_cast<std::uint32_t>(bits) << 16); }
};

// Narrower formats: the magnitude moved to where a float32 has it is off by a power of two only,
// subnormal numbers included.
template <class F>
double narrow(typename F::Bits bits, int shift, float scale) {
  const auto magnitude = static_cast<std::uint32_t>(bits & (F::kSign - 1)) << shift;
  const auto value =
      static_cast<double>(std::bit_cast<float>(magnitude)) * static_cast<double>(scale);
  return (bits & F::kSign) != 0 ? -value : value;
}
struct Float16 : Format<std::uint16_t, 0x8000, 0x7c00, 0x400> {
  static double value(Bits bits) { return narrow<Float16>(bits, 13, 0x1p112f); }
};
struct Float8E5m2 : Format<std::uint8_t, 0x80, 0x7c, 0x4> {
  static double value(Bits bits) { return narrow<Float8E5m2>(bits, 21, 0x1p112f); }
};
struct Float8E4m3fn : Format<std::uint8_t, 0x80, 0x7f, 0x8> {
  static constexpr bool kHasInfinity = false;
  static double value(Bits bits) { return narrow<Float8E4m3fn>(bits, 20, 0x1p120f); }
};

template <class T>
T load(const void* data, std::int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + i * std::int64_t{sizeof(T)}, sizeof(T));
  return value;
}

template <class F>
typename F::Bits magnitude_of(typename F::Bits bits) {
  return static_cast<typename F::Bits>(bits & (F::kSign - 1));
}

template <class F>
RowState gather_floats(const void* data, std::int64_t n, double eps, double* out) {
  using Bits = typename F::Bits;
  RowState got;
  got.count = n;
  Bits largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const Bits magnitude = magnitude_of<F>(load<Bits>(data, i));
    largest = magnitude > largest ? magnitude : largest;
  }
  if (largest < F::kNonFinite) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = F::value(load<Bits>(data, i));
  } else {
    std::int64_t written = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const Bits bits = load<Bits>(data, i);
      const Bits magnitude = magnitude_of<F>(bits);
      if (magnitude < F::kNonFinite) {
        out[written++] = F::value(bits);
      } else if (!F::kHasInfinity || magnitude > F::kNonFinite) {
        ++got.nans;
      } else if (bits == magnitude) {
        ++got.pos_infs;
      } else {
        ++got.neg_infs;
      }
    }
  }
  const std::int64_t finite = got.finite();
  for (std::int64_t i = 0; i < finite; ++i) got.zeros += std::fabs(out[i]) < eps;
  for (std::int64_t i = 0; i < n; ++i) {
    const Bits magnitude = magnitude_of<F>(load<Bits>(data, i));
    got.subnormals += magnitude != 0 && magnitude < F::kMinNormal;
  }
  return got;
}

template <class T>
RowState gather_integers(const void* data, std::int64_t n, double eps, double* out) {
  // The smallest integer that is not below eps: exact where float64 no longer holds every integer.
  std::uint64_t limit = std::numeric_limits<std::uint64_t>::max();
  if (!(eps > 0.0))
    limit = 0;
  else if (eps <= 0x1p63)
    limit = static_cast<std::uint64_t>(std::ceil(eps));
  RowState got;
  got.count = n;
  for (std::int64_t i = 0; i < n; ++i) {
    const T value = load<T>(data, i);
    std::uint64_t magnitude = static_cast<std::uint64_t>(value);
    if constexpr (std::is_signed_v<T>) {
      if (value < 0) magnitude = 0 - magnitude;
    }
    got.zeros += magnitude < limit;
    out[i] = static_cast<double>(value);
  }
  return got;
}

RowState gather_bools(const void* data, std::int64_t n, double eps, double* out) {
  RowState got;
  got.count = n;
  std::int64_t ones = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const int value = load<std::uint8_t>(data, i) != 0;
    ones += value;
    out[i] = value;
  }
  got.zeros = (0.0 < eps ? n - ones : 0) + (1.0 < eps ? ones : 0);
  return got;
}

template <class F>
void widen_floats(const void* data, std::int64_t n, double* out) {
  using Bits = typename F::Bits;
  for (std::int64_t i = 0; i < n; ++i) {
    const Bits bits = load<Bits>(data, i);
    const Bits magnitude = magnitude_of<F>(bits);
    if (magnitude < F::kNonFinite) {
      out[i] = F::value(bits);
    } else if (!F::kHasInfinity || magnitude > F::kNonFinite) {
      out[i] = std::numeric_limits<double>::quiet_NaN();
    } else {
      const double infinity = std::numeric_limits<double>::infinity();
      out[i] = bits == magnitude ? infinity : -infinity;
    }
  }
}

}  // namespace

void widen(DType dtype, const void* data, std::int64_t n, double* out) {
  switch (dtype) {
    case DType::float64:
      return widen_floats<Float64>(data, n, out);
    case DType::float32:
      return widen_floats<Float32>(data, n, out);
    case DType::float16:
      return widen_floats<Float16>(data, n, out);
    case DType::bfloat16:
      return widen_floats<Bfloat16>(data, n, out);
    case DType::float8_e4m3fn:
      return widen_floats<Float8E4m3fn>(data, n, out);
    case DType::float8_e5m2:
      return widen_floats<Float8E5m2>(data, n, out);
    default:
      gather(dtype, data, n, 0.0, out);  // integers are all finite
  }
}

RowState gather(DType dtype, const void* data, std::int64_t n, double eps, double* out) {
  switch (dtype) {
    case DType::float64:
      return gather_floats<Float64>(data, n, eps, out);
    case DType::float32:
      return gather_floats<Float32>(data, n, eps, out);
    case DType::float16:
      return gather_floats<Float16>(data, n, eps, out);
    case DType::bfloat16:
      return gather_floats<Bfloat16>(data, n, eps, out);
    case DType::float8_e4m3fn:
      return gather_floats<Float8E4m3fn>(data, n, eps, out);
    case DType::float8_e5m2:
      return gather_floats<Float8E5m2>(data, n, eps, out);
    case DType::int64:
      return gather_integers<std::int64_t>(data, n, eps, out);
    case DType::int32:
      return gather_integers<std::int32_t>(data, n, eps, out);
    case DType::int16:
      return gather_integers<std::int16_t>(data, n, eps, out);
    case DType::int8:
      return gather_integers<std::int8_t>(data, n, eps, out);
    case DType::uint64:
      return gather_integers<std::uint64_t>(data, n, eps, out);
    case DType::uint32:
      return gather_integers<std::uint32_t>(data, n, eps, out);
    case DType::uint16:
      return gather_integers<std::uint16_t>(data, n, eps, out);
    case DType::uint8:
      return gather_integers<std::uint8_t>(data, n, eps, out);
    case DType::bool8:
      return gather_bools(data, n, eps, out);
  }
  return {};
}

}  // namespace trainmon::cpu
