// Reads what DLPack describes.
#include <optional>
#include <string>

#include "ref.h"
#include "tensor_readers.h"

namespace trainmon {
namespace {

std::optional<DType> dtype_of(const dlpack::DataType& type) {
  if (type.lanes != 1) return std::nullopt;
  const auto pick = [&](DType b8, DType b16, DType b32, DType b64) -> std::optional<DType> {
    switch (type.bits) {
      case 8:
        return b8;
      case 16:
        return b16;
      case 32:
        return b32;
      case 64:
        return b64;
      default:
        return std::nullopt;
    }
  };
  switch (type.code) {
    case dlpack::kInt:
      return pick(DType::int8, DType::int16, DType::int32, DType::int64);
    case dlpack::kUInt:
      return pick(DType::uint8, DType::uint16, DType::uint32, DType::uint64);
    case dlpack::kFloat:
      if (type.bits == 8) return std::nullopt;
      return pick({}, DType::float16, DType::float32, DType::float64);
    case dlpack::kBfloat:
      if (type.bits == 16) return DType::bfloat16;
      return std::nullopt;
    case dlpack::kBool:
      if (type.bits == 8) return DType::bool8;
      return std::nullopt;
    case dlpack::kFloat8E4m3fn:
      return DType::float8_e4m3fn;
    case dlpack::kFloat8E5m2:
      return DType::float8_e5m2;
    default:
      return std::nullopt;
  }
}

std::string name_of(const dlpack::DataType& type) {
  const std::string bits = std::to_string(type.bits);
  if (type.lanes != 1) return "vector";
  switch (type.code) {
    case dlpack::kInt:
      return "int" + bits;
    case dlpack::kUInt:
      return "uint" + bits;
    case dlpack::kFloat:
      return "float" + bits;
    case dlpack::kComplex:
      return "complex" + bits;
    default:
      return "dtype_code_" + std::to_string(type.code);
  }
}

}  // namespace

Device device_of(dlpack::DeviceType type) {
  switch (type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:
    case dlpack::kRocmHost:
      return Device::cpu;
    case dlpack::kCuda:
    case dlpack::kCudaManaged:
      return Device::cuda;
    default:
      return Device::other;
  }
}

Access take(const dlpack::Tensor& tensor, TensorAccess& out) {
  out.view.device = device_of(tensor.device_type);
  out.view.device_index = tensor.device_id;
  if (out.view.device == Device::other) return Access::not_cpu;
  const bool on_device = out.view.device != Device::cpu;
  const std::optional<DType> dtype = dtype_of(tensor.dtype);
  const bool is_readable = tensor.ndim >= 0 && tensor.ndim <= TensorAccess::kMaxDims;
  if (on_device && !(dtype && is_readable)) return Access::not_cpu;
  if (!dtype) return refuse(out, name_of(tensor.dtype));
  if (!is_readable) return refuse(out, "dimensions");
  out.view.dtype = *dtype;
  out.view.ndim = tensor.ndim;
  out.view.data = static_cast<const char*>(tensor.data) + tensor.byte_offset;
  for (int i = 0; i < tensor.ndim; ++i) {
    const auto d = static_cast<std::size_t>(i);
    out.sizes[d] = tensor.shape[i];
    if (tensor.strides != nullptr) out.strides[d] = tensor.strides[i];
  }
  out.view.sizes = out.sizes.data();
  out.view.strides = tensor.strides != nullptr ? out.strides.data() : nullptr;
  return on_device ? Access::not_cpu : Access::ok;
}

namespace {

PyObject* dlpack_capsule(PyObject* object) {
  const Ref method(attribute(object, "__dlpack__"));
  const Ref none(PyTuple_New(0));
  const Ref arguments(Py_BuildValue("{s:(ii)}", "max_version", 1, 0));
  if (!method || !none || !arguments) return nullptr;
  PyObject* capsule = PyObject_Call(method.get(), none.get(), arguments.get());
  if (capsule == nullptr) {  // written before DLPack had versions
    PyErr_Clear();
    capsule = PyObject_CallNoArgs(method.get());
  }
  return capsule;
}

}  // namespace

Access read_dlpack(PyObject* object, TensorAccess& out) {
  const Ref device(call(object, "__dlpack_device__"));
  std::array<std::int64_t, TensorAccess::kMaxDims> where{};
  if (read_tuple(device.get(), where) != 2) return refuse(out, "unreadable");
  out.view.device = device_of(static_cast<dlpack::DeviceType>(where[0]));
  if (out.view.device != Device::cpu) return Access::not_cpu;
  Ref capsule(dlpack_capsule(object));
  if (!capsule) return refuse(out, "unreadable");
  const dlpack::Tensor* tensor = nullptr;
  if (PyCapsule_IsValid(capsule.get(), "dltensor") != 0) {
    tensor = static_cast<const dlpack::Tensor*>(PyCapsule_GetPointer(capsule.get(), "dltensor"));
  } else if (PyCapsule_IsValid(capsule.get(), "dltensor_versioned") != 0) {
    const auto* managed = static_cast<const dlpack::ManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule.get(), "dltensor_versioned"));
    if (managed->version.major == dlpack::kMajor) tensor = &managed->tensor;
  }
  if (tensor == nullptr) return refuse(out, "unreadable");
  const Access access = take(*tensor, out);
  // Not renamed, so the capsule frees what it describes when it goes.
  if (access == Access::ok) out.owner = capsule.release();
  return access;
}

}  // namespace trainmon
