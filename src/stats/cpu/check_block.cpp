// Rows that begin or end inside the block are filled up with zeros, which add nothing.
#include "stats/cpu/check_block.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "stats/check_keys.h"
#include "stats/cpu/check_kernels.h"
#include "stats/cpu/float32.h"
#include "stats/cpu/float_mode.h"
#include "stats/cpu/gather.h"
#include "stats/cpu/kernels.h"

namespace trainmon::cpu {
namespace {

// Every number of an 8-bit format.
std::array<float, 256> numbers_of(DType dtype) {
  const FloatMode mode;
  std::array<float, 256> numbers;
  std::array<std::uint8_t, 256> bits;
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint8_t>(i);
  to_float32(dtype, bits.data(), 256, numbers.data());
  return numbers;
}

void look_up(const std::array<float, 256>& numbers, const void* data, std::int64_t n, float* out) {
  const auto* p = static_cast<const std::uint8_t*>(data);
  for (std::int64_t i = 0; i < n; ++i) out[i] = numbers[p[i]];
}

// Formats of at most 16 bits.
void narrow_to_float32(DType dtype, const void* data, std::int64_t n, float* out) {
  static const std::array<float, 256> e4m3fn = numbers_of(DType::float8_e4m3fn);
  static const std::array<float, 256> e5m2 = numbers_of(DType::float8_e5m2);
  switch (dtype) {
    case DType::float16:
      return check_kernels().float32_of_float16(data, n, out);
    case DType::float8_e4m3fn:
      return look_up(e4m3fn, data, n, out);
    case DType::float8_e5m2:
      return look_up(e5m2, data, n, out);
    default:
      return to_float32(dtype, data, n, out);
  }
}

}  // namespace

std::uint64_t fingerprint_of(DType dtype, const void* data, std::int64_t n, std::int64_t first) {
  constexpr std::uint64_t kRow = 4 * kFingerprintColumns;
  const CheckKernels& kernels = check_kernels();
  const auto* p = static_cast<const std::byte*>(data);
  const std::uint64_t item = dtype_size(dtype);
  std::uint64_t at = static_cast<std::uint64_t>(first) * item;
  std::uint64_t bytes = static_cast<std::uint64_t>(n) * item;
  std::uint64_t sum = 0;
  const auto add_part = [&](std::uint64_t part) {
    std::byte row[kRow] = {};
    std::memcpy(row + at % kRow, p, part);
    sum += kernels.fingerprint(row, 1, at / kRow);
    p += part;
    at += part;
    bytes -= part;
  };
  if (at % kRow != 0) add_part(std::min(bytes, kRow - at % kRow));
  if (const std::uint64_t rows = bytes / kRow; rows > 0) {
    sum += kernels.fingerprint(p, static_cast<std::int64_t>(rows), at / kRow);
    p += rows * kRow;
    at += rows * kRow;
    bytes -= rows * kRow;
  }
  if (bytes > 0) add_part(bytes);
  return sum;
}

void add_sketch(DType dtype, const void* data, std::int64_t n, std::int64_t first, double* lanes) {
  const CheckKernels& kernels = check_kernels();
  switch (dtype) {
    case DType::float64:
      return kernels.sketch_float64(data, n, first, lanes);
    case DType::float32:
      return kernels.sketch_float32(data, n, first, lanes);
    case DType::float16:
    case DType::bfloat16:
    case DType::float8_e4m3fn:
    case DType::float8_e5m2: {
      float numbers[kBlock];
      narrow_to_float32(dtype, data, n, numbers);
      return kernels.sketch_float32(numbers, n, first, lanes);
    }
    default: {
      double numbers[kBlock];
      widen(dtype, data, n, numbers);
      return kernels.sketch_float64(numbers, n, first, lanes);
    }
  }
}

}  // namespace trainmon::cpu
