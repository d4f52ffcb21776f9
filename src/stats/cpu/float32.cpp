// Reads every element type as float32, one loop per type.
#include "stats/cpu/float32.h"

#include <bit>
#include <cstddef>
#include <cstring>

#include "stats/cpu/probe_kernels.h"

namespace trainmon::cpu {
namespace {

template <class T, class Convert>
void each(const void* data, std::int64_t n, float* out, Convert convert) {
  const auto* from = static_cast<const std::byte*>(data);
  for (std::int64_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, from + i * std::int64_t{sizeof(T)}, sizeof(T));
    out[i] = convert(value);
  }
}

template <class T>
void cast(const void* data, std::int64_t n, float* out) {
  each<T>(data, n, out, [](T value) { return static_cast<float>(value); });
}

// The magnitude moved to where float32 has it is off by a power of two only, subnormal numbers
// included. A NaN keeps its bits and becomes a quiet one.
float float16(std::uint16_t bits) {
  const std::uint32_t magnitude = bits & 0x7fffu;
  const std::uint32_t moved = magnitude << 13;
  const auto number = std::bit_cast<std::uint32_t>(std::bit_cast<float>(moved) * 0x1p112f);
  const std::uint32_t quiet = magnitude > 0x7c00 ? 0x7fc00000u : 0x7f800000u;
  const std::uint32_t value = magnitude < 0x7c00 ? number : moved | quiet;
  return std::bit_cast<float>(value | static_cast<std::uint32_t>(bits & 0x8000) << 16);
}

float float8_e4m3fn(std::uint8_t bits) {
  const std::uint32_t magnitude = bits & 0x7fu;
  const auto number =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 20) * 0x1p120f);
  const std::uint32_t value = magnitude == 0x7f ? 0x7ff00000u : number;
  return std::bit_cast<float>(value | static_cast<std::uint32_t>(bits & 0x80) << 24);
}

}  // namespace

void to_float32(DType dtype, const void* data, std::int64_t n, float* out) {
  switch (dtype) {
    case DType::float64:
      return cast<double>(data, n, out);
    case DType::float32:
      return cast<float>(data, n, out);
    case DType::float16:
      return each<std::uint16_t>(data, n, out, float16);
    case DType::bfloat16:
      return probe_kernels().float32_of_bfloat16(data, n, out);
    case DType::float8_e4m3fn:
      return each<std::uint8_t>(data, n, out, float8_e4m3fn);
    case DType::float8_e5m2:  // the upper half of a float16
      return each<std::uint8_t>(data, n, out, [](std::uint8_t bits) {
        return float16(static_cast<std::uint16_t>(bits << 8));
      });
    case DType::int64:
      return cast<std::int64_t>(data, n, out);
    case DType::int32:
      return cast<std::int32_t>(data, n, out);
    case DType::int16:
      return cast<std::int16_t>(data, n, out);
    case DType::int8:
      return cast<std::int8_t>(data, n, out);
    case DType::uint64:
      return cast<std::uint64_t>(data, n, out);
    case DType::uint32:
      return cast<std::uint32_t>(data, n, out);
    case DType::uint16:
      return cast<std::uint16_t>(data, n, out);
    case DType::uint8:
      return cast<std::uint8_t>(data, n, out);
    case DType::bool8:
      return each<std::uint8_t>(data, n, out,
                                [](std::uint8_t value) { return value != 0 ? 1.0f : 0.0f; });
  }
}

}  // namespace trainmon::cpu
