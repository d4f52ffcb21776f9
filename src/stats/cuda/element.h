// Element types as the kernel reads them. It reads sixteen bytes at a time where the type is one
// that people train with, element by element for the rest.
#pragma once

#include <cstdint>
#include <cstring>

#include "model/both.h"
#include "trainmon/tensor.h"

namespace trainmon::cuda {

template <class To, class From>
TRAINMON_BOTH To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

TRAINMON_BOTH float half_to_float(std::uint32_t half) {
#if defined(__CUDA_ARCH__)
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(static_cast<unsigned short>(half)));
  return out;
#else
  const std::uint32_t magnitude = half & 0x7fffu;
  const std::uint32_t sign = (half & 0x8000u) << 16;
  if (magnitude >= 0x7c00u) return bits_as<float>(sign | 0x7f800000u | (magnitude << 13));
  return bits_as<float>(sign | bits_as<std::uint32_t>(bits_as<float>(magnitude << 13) * 0x1p112f));
#endif
}

TRAINMON_BOTH float e4m3_to_float(std::uint32_t byte) {
  const std::uint32_t magnitude = byte & 0x7fu;
  const std::uint32_t sign = (byte & 0x80u) << 24;
  if (magnitude == 0x7fu) return bits_as<float>(0x7fc00000u);
  return bits_as<float>(sign | bits_as<std::uint32_t>(bits_as<float>(magnitude << 20) * 0x1p120f));
}

// kMinNormal: the smallest normal number of the format, as the bits of a float32.
struct Float32 {
  using Real = float;
  static constexpr int kPerVector = 4;
  static constexpr std::uint32_t kMinNormal = 0x00800000u;
  TRAINMON_BOTH static void decode(const std::uint32_t* word, float* out) {
    for (int i = 0; i < 4; ++i) out[i] = bits_as<float>(word[i]);
  }
  TRAINMON_BOTH static float one(const void* p) { return *static_cast<const float*>(p); }
};
struct Bfloat16 {
  using Real = float;
  static constexpr int kPerVector = 8;
  static constexpr std::uint32_t kMinNormal = 0x00800000u;
  TRAINMON_BOTH static void decode(const std::uint32_t* word, float* out) {
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = bits_as<float>(word[i] << 16);
      out[2 * i + 1] = bits_as<float>(word[i] & 0xffff0000u);
    }
  }
  TRAINMON_BOTH static float one(const void* p) {
    return bits_as<float>(static_cast<std::uint32_t>(*static_cast<const std::uint16_t*>(p)) << 16);
  }
};
struct Float16 {
  using Real = float;
  static constexpr int kPerVector = 8;
  static constexpr std::uint32_t kMinNormal = 0x38800000u;  // 2^-14
  TRAINMON_BOTH static void decode(const std::uint32_t* word, float* out) {
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = half_to_float(word[i] & 0xffffu);
      out[2 * i + 1] = half_to_float(word[i] >> 16);
    }
  }
  TRAINMON_BOTH static float one(const void* p) {
    return half_to_float(*static_cast<const std::uint16_t*>(p));
  }
};
struct Float8E5m2 {
  using Real = float;
  static constexpr int kPerVector = 16;
  static constexpr std::uint32_t kMinNormal = 0x38800000u;  // 2^-14
  TRAINMON_BOTH static void decode(const std::uint32_t* word, float* out) {
    for (int i = 0; i < 16; ++i)
      out[i] = half_to_float((word[i / 4] >> (8 * (i % 4)) & 0xffu) << 8);
  }
  TRAINMON_BOTH static float one(const void* p) {
    return half_to_float(static_cast<std::uint32_t>(*static_cast<const std::uint8_t*>(p)) << 8);
  }
};
struct Float8E4m3fn {
  using Real = float;
  static constexpr int kPerVector = 16;
  static constexpr std::uint32_t kMinNormal = 0x3c800000u;  // 2^-6
  TRAINMON_BOTH static void decode(const std::uint32_t* word, float* out) {
    for (int i = 0; i < 16; ++i) out[i] = e4m3_to_float(word[i / 4] >> (8 * (i % 4)) & 0xffu);
  }
  TRAINMON_BOTH static float one(const void* p) {
    return e4m3_to_float(*static_cast<const std::uint8_t*>(p));
  }
};
struct Float64 {
  using Real = double;
  static constexpr int kPerVector = 2;
  TRAINMON_BOTH static void decode(const std::uint32_t* word, double* out) {
    for (int i = 0; i < 2; ++i) {
      out[i] = bits_as<double>(static_cast<std::uint64_t>(word[2 * i]) |
                               static_cast<std::uint64_t>(word[2 * i + 1]) << 32);
    }
  }
  TRAINMON_BOTH static double one(const void* p) { return *static_cast<const double*>(p); }
};

// Any type, one element: its value, and what only the type knows of it.
struct Element {
  double value;
  bool zero;  // |x| < eps
  bool subnormal;
};

template <class Integer>
TRAINMON_BOTH Element integer_element(const void* p, double eps) {
  const Integer x = *static_cast<const Integer*>(p);
  auto magnitude = static_cast<std::uint64_t>(x);
  if constexpr (Integer(-1) < Integer(0)) {
    if (x < 0) magnitude = 0 - magnitude;
  }
  // Exact where float64 no longer holds every integer: the smallest integer that is not below eps.
  std::uint64_t limit = ~std::uint64_t{0};
  if (!(eps > 0.0)) {
    limit = 0;
  } else if (eps <= 0x1p63) {
    limit = static_cast<std::uint64_t>(ceil(eps));
  }
  return {static_cast<double>(x), magnitude < limit, false};
}

template <class Format>
TRAINMON_BOTH Element float_element(const void* p, double eps) {
  const auto x = static_cast<double>(Format::one(p));
  const double size = x < 0.0 ? -x : x;
  return {x, size<eps, size> 0.0 && size < static_cast<double>(bits_as<float>(Format::kMinNormal))};
}

TRAINMON_BOTH Element element(DType dtype, const void* p, double eps) {
  switch (dtype) {
    case DType::float64: {
      const double x = Float64::one(p);
      const double size = x < 0.0 ? -x : x;
      return {x, size<eps, size> 0.0 && size < 0x1p-1022};
    }
    case DType::float32:
      return float_element<Float32>(p, eps);
    case DType::float16:
      return float_element<Float16>(p, eps);
    case DType::bfloat16:
      return float_element<Bfloat16>(p, eps);
    case DType::float8_e4m3fn:
      return float_element<Float8E4m3fn>(p, eps);
    case DType::float8_e5m2:
      return float_element<Float8E5m2>(p, eps);
    case DType::int64:
      return integer_element<std::int64_t>(p, eps);
    case DType::int32:
      return integer_element<std::int32_t>(p, eps);
    case DType::int16:
      return integer_element<std::int16_t>(p, eps);
    case DType::int8:
      return integer_element<std::int8_t>(p, eps);
    case DType::uint64:
      return integer_element<std::uint64_t>(p, eps);
    case DType::uint32:
      return integer_element<std::uint32_t>(p, eps);
    case DType::uint16:
      return integer_element<std::uint16_t>(p, eps);
    case DType::uint8:
      return integer_element<std::uint8_t>(p, eps);
    case DType::bool8: {
      const double x = *static_cast<const std::uint8_t*>(p) != 0 ? 1.0 : 0.0;
      return {x, x < eps, false};
    }
  }
  return {0.0, false, false};
}

}  // namespace trainmon::cuda
