// A tensor as the core sees it: a borrowed pointer with dtype, sizes, strides and device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace trainmon {

// Element types the core measures. Complex and quantised types are not among them on purpose: they
// are refused by name rather than half measured.
enum class DType : std::uint8_t {
  float64,
  float32,
  float16,
  bfloat16,
  float8_e4m3fn,
  float8_e5m2,
  int64,
  int32,
  int16,
  int8,
  uint64,
  uint32,
  uint16,
  uint8,
  bool8,
};

// "float32", "bfloat16", "bool", ...: the names torch and NumPy use, without their prefix.
std::string_view dtype_name(DType dtype);
// The inverse; nullopt for an unknown name.
std::optional<DType> dtype_from_name(std::string_view name);
// Bytes per element.
std::size_t dtype_size(DType dtype);

enum class Device : std::uint8_t { cpu, cuda, other };

// Borrowed for the duration of one call; nothing keeps it. `data` points at the first element.
// `strides` counts elements, may be zero or negative, and nullptr means C-contiguous. `ndim` 0 is
// a scalar (one element). `stream` is the raw device stream that produced the tensor (devices
// only).
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::float32;
  int ndim = 0;
  const std::int64_t* sizes = nullptr;
  const std::int64_t* strides = nullptr;
  Device device = Device::cpu;
  int device_index = 0;
  void* stream = nullptr;
};

// Number of elements (product of sizes; 1 for a scalar), counting expanded dimensions fully.
std::int64_t element_count(const TensorView& tensor);

}  // namespace trainmon
