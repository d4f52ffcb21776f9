// Tensors of any type for the tests of fingerprint and sketch.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "trainmon/tensor.h"

namespace trainmon::test {

struct Tensor {
  std::vector<std::byte> bytes;
  std::size_t offset = 0;
  std::int64_t size = 0;
  DType dtype = DType::float32;

  TensorView view() const { return part(0, size); }
  TensorView part(std::int64_t begin, const std::int64_t& n) const {
    return {bytes.data() + offset + static_cast<std::size_t>(begin) * dtype_size(dtype),
            dtype,
            1,
            &n,
            nullptr,
            Device::cpu,
            0,
            nullptr};
  }
  std::span<std::byte> elements() {
    return std::span(bytes).subspan(offset, static_cast<std::size_t>(size) * dtype_size(dtype));
  }
};

// Bits of the type; `ordinary` leaves out NaN, infinities and what is not of a gradient's size.
inline Tensor make(DType dtype, std::int64_t n, std::size_t offset, std::mt19937_64& random,
                   bool ordinary = true) {
  Tensor tensor{{}, offset, n, dtype};
  const std::size_t item = dtype_size(dtype);
  tensor.bytes.resize(offset + static_cast<std::size_t>(n) * item + 1);
  std::normal_distribution<double> normal;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    std::uint64_t bits = random();
    if (dtype == DType::bool8) bits &= 1;
    if (ordinary && dtype == DType::float64) bits = std::bit_cast<std::uint64_t>(normal(random));
    const auto narrow = std::bit_cast<std::uint32_t>(static_cast<float>(normal(random)));
    if (ordinary && dtype == DType::float32) bits = narrow;
    if (ordinary && dtype == DType::bfloat16) bits = narrow >> 16;
    if (ordinary && dtype == DType::float16) bits = (bits & 0x83ff) | (12 + bits % 4) << 10;
    if (ordinary && dtype == DType::float8_e4m3fn) bits &= 0xbf;
    if (ordinary && dtype == DType::float8_e5m2) bits &= 0xbf;
    std::memcpy(tensor.bytes.data() + offset + i * item, &bits, item);
  }
  return tensor;
}

}  // namespace trainmon::test
