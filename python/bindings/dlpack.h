// The part of DLPack 1.3 that is needed to look at a tensor, after the published header
// (https://github.com/dmlc/dlpack, include/dlpack/dlpack.h; its layout is an ABI promise).
#pragma once

#include <cstdint>

namespace trainmon::dlpack {

enum DeviceType : std::int32_t {
  kCpu = 1,
  kCuda = 2,
  kCudaHost = 3,
  kRocm = 10,
  kRocmHost = 11,
  kCudaManaged = 13,
};

enum TypeCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4m3fn = 10,
  kFloat8E5m2 = 12,
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  DeviceType device_type;
  std::int32_t device_id;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; may be null before version 1.2: C-contiguous
  std::uint64_t byte_offset;
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};
inline constexpr std::uint32_t kMajor = 1;

// What a capsule "dltensor" holds (its first member is all we read), and "dltensor_versioned".
struct ManagedTensorVersioned {
  Version version;
  void* manager;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

// What the capsule "dlpack_exchange_api" of a tensor type holds.
struct ExchangeApi {
  Version version;
  ExchangeApi* older;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  // Fills a borrowed description; 0, or -1 with a Python exception set. May be null.
  int (*tensor_from_object)(void* object, Tensor* out);
  int (*current_stream)(DeviceType type, std::int32_t device, void** stream);
};

}  // namespace trainmon::dlpack
