// Reads the description of a tensor: the C exchange of DLPack where the type offers it, else by
// hand.
#include "tensor.h"

#include <cctype>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "dlpack.h"

namespace trainmon {
namespace {

// A strong reference.
class Ref {
 public:
  explicit Ref(PyObject* object) : object_(object) {}
  ~Ref() { Py_XDECREF(object_); }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// Attribute or result of a method without arguments; null and no exception when that fails.
PyObject* attribute(PyObject* object, const char* name) {
  PyObject* value = PyObject_GetAttrString(object, name);
  if (value == nullptr) PyErr_Clear();
  return value;
}
PyObject* call(PyObject* object, const char* name) {
  const Ref method(attribute(object, name));
  PyObject* value = method ? PyObject_CallNoArgs(method.get()) : nullptr;
  if (value == nullptr) PyErr_Clear();
  return value;
}
bool call_is_true(PyObject* object, const char* name) {
  const Ref value(call(object, name));
  return value.get() == Py_True;
}
bool attribute_is_true(PyObject* object, const char* name) {
  const Ref value(attribute(object, name));
  return value.get() == Py_True;
}

std::string text_of(PyObject* object) {
  const Ref text(object == nullptr ? nullptr : PyObject_Str(object));
  const char* utf8 = text ? PyUnicode_AsUTF8AndSize(text.get(), nullptr) : nullptr;
  if (utf8 == nullptr) PyErr_Clear();
  return utf8 == nullptr ? "" : utf8;
}
// "torch.float32" -> "float32", "my.module.DTensor" -> "DTensor".
std::string last_part(std::string text) {
  return text.substr(text.rfind('.') + 1);
}
std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// An attribute of a module that is already imported; a tensor's type cannot exist before its
// module.
PyObject* imported(const char* module, const char* name) {
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* found = modules == nullptr ? nullptr : PyDict_GetItemString(modules, module);
  return found == nullptr ? nullptr : attribute(found, name);
}

// A method of torch.Tensor; null where torch lacks it.
PyObject* method_of_tensor(const char* name) {
  const Ref tensor(imported("torch", "Tensor"));
  return tensor ? attribute(tensor.get(), name) : nullptr;
}

bool is_subtype(PyTypeObject* type, const char* module, const char* name) {
  const Ref base(imported(module, name));
  return base && PyType_Check(base.get()) &&
         PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(base.get())) != 0;
}

constexpr const char* kTooSmall = "storage_too_small";

enum class Way { exchange, by_hand, numpy, mindspore, old_mindspore, dlpack, refused };

// Before 2.10, data_ptr() of MindSpore is 0 until an operation has used the tensor, and that of a
// view lacks its offset (seen in 2.7.0).
bool has_sound_addresses() {
  const std::string version = text_of(Ref(imported("mindspore", "__version__")).get());
  int major = 0;
  int minor = 0;
  return std::sscanf(version.c_str(), "%d.%d", &major, &minor) < 2 ||
         std::pair(major, minor) >= std::pair(2, 10);
}

struct TypeInfo {
  Way way = Way::refused;
  const dlpack::ExchangeApi* api = nullptr;
  std::string reason;
  bool has_function = false;  // a torch.Tensor that sees the calls of its own methods
};

TypeInfo classify(PyTypeObject* type) {
  PyObject* object = reinterpret_cast<PyObject*>(type);
  const std::string name = lower(text_of(Ref(attribute(object, "__name__")).get()));
  if (is_subtype(type, "torch", "Tensor")) {
    // A subclass that dispatches its own operations has no memory of its own to look at.
    const Ref dispatch(attribute(object, "__torch_dispatch__"));
    const Ref plain(imported("torch", "Tensor"));
    const Ref plain_dispatch(attribute(plain.get(), "__torch_dispatch__"));
    if (dispatch.get() != plain_dispatch.get()) return {Way::refused, nullptr, name};
    const Ref capsule(attribute(object, "__dlpack_c_exchange_api__"));
    const auto* api = !capsule ? nullptr
                               : static_cast<const dlpack::ExchangeApi*>(
                                     PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
    PyErr_Clear();
    while (api != nullptr && api->version.major != dlpack::kMajor) api = api->older;
    const Ref function(attribute(object, "__torch_function__"));
    const Ref none(imported("torch._C", "_disabled_torch_function_impl"));
    const bool has_function = object != plain.get() && function.get() != none.get();
    const bool is_old = api == nullptr || api->tensor_from_object == nullptr;
    return {is_old ? Way::by_hand : Way::exchange, is_old ? nullptr : api, name, has_function};
  }
  if (is_subtype(type, "numpy", "ndarray")) {
    // What a masked array holds where it is masked is not data.
    return {is_subtype(type, "numpy.ma", "MaskedArray") ? Way::refused : Way::numpy, nullptr, name};
  }
  if (is_subtype(type, "mindspore.common.tensor", "Tensor")) {
    return {has_sound_addresses() ? Way::mindspore : Way::old_mindspore, nullptr, name};
  }
  const Ref method(attribute(object, "__dlpack__"));
  return {method && !is_subtype(type, "numpy", "generic") ? Way::dlpack : Way::refused, nullptr,
          name};
}

const TypeInfo& type_info(PyTypeObject* type) {
  constexpr std::size_t kMost = 1000;  // a program that makes types without end must not grow us
  static std::unordered_map<PyTypeObject*, TypeInfo> known;
  static TypeInfo last_unknown;
  static const std::pair<PyTypeObject* const, TypeInfo>* last = nullptr;  // its address is stable
  if (last != nullptr && last->first == type) return last->second;
  const auto found = known.find(type);
  if (found != known.end()) {
    last = &*found;
    return found->second;
  }
  if (known.size() >= kMost) return last_unknown = classify(type);
  Py_INCREF(reinterpret_cast<PyObject*>(type));  // so that its address is not used again
  return known.emplace(type, classify(type)).first->second;
}

Access refuse(TensorAccess& out, std::string reason) {
  out.reason = std::move(reason);
  return Access::refused;
}

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

// Reads a tuple or list of integers; -1 when it is none or too long.
int read_tuple(PyObject* tuple, std::array<std::int64_t, TensorAccess::kMaxDims>& out) {
  const bool is_list = tuple != nullptr && PyList_Check(tuple);
  if (tuple == nullptr || !(is_list || PyTuple_Check(tuple))) return -1;
  const Py_ssize_t n = is_list ? PyList_Size(tuple) : PyTuple_Size(tuple);
  if (n > TensorAccess::kMaxDims) return -1;
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* item = is_list ? PyList_GetItem(tuple, i) : PyTuple_GetItem(tuple, i);
    const long long value = PyLong_AsLongLong(item);
    if (value == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      return -1;
    }
    out[static_cast<std::size_t>(i)] = value;
  }
  return static_cast<int>(n);
}

// While it is there, subclasses of tensors see no calls.
class NoFunctions {
 public:
  NoFunctions() {
    static PyObject* const type = imported("torch._C", "DisableTorchFunctionSubclass");
    guard_ = type == nullptr ? nullptr : PyObject_CallNoArgs(type);
    if (guard_ != nullptr) Ref(call(guard_, "__enter__"));
  }
  ~NoFunctions() {
    if (guard_ == nullptr) return;
    const Ref exit(attribute(guard_, "__exit__"));
    if (exit) Ref(PyObject_CallFunctionObjArgs(exit.get(), Py_None, Py_None, Py_None, nullptr));
    Py_DECREF(guard_);
  }
  NoFunctions(const NoFunctions&) = delete;
  NoFunctions& operator=(const NoFunctions&) = delete;

 private:
  PyObject* guard_;
};

// Takes hold of the memory of a torch tensor whose view is filled in: another thread may give the
// tensor other memory meanwhile. False where it is smaller than the sizes say (resize_() of a
// storage leaves them), which nothing else tells.
bool hold_storage(PyObject* object, TensorAccess& out) {
  static PyObject* const storage_of = method_of_tensor("untyped_storage");
  static PyObject* const offset_of = method_of_tensor("storage_offset");
  if (storage_of == nullptr || offset_of == nullptr) return true;  // torch 1
  std::optional<NoFunctions> unseen;
  if (type_info(Py_TYPE(object)).has_function) unseen.emplace();
  std::int64_t last = 0;
  for (int i = 0; i < out.view.ndim; ++i) {
    const auto d = static_cast<std::size_t>(i);
    if (out.sizes[d] == 0) return true;
    last += (out.sizes[d] - 1) * out.strides[d];
  }
  out.owner = PyObject_Vectorcall(storage_of, &object, 1, nullptr);
  const Ref offset(PyObject_Vectorcall(offset_of, &object, 1, nullptr));
  if (out.owner == nullptr || !offset) return false;
  const std::int64_t end = PyLong_AsLongLong(offset.get()) + last + 1;
  const Py_ssize_t bytes = PyObject_Size(out.owner);
  return end * static_cast<std::int64_t>(dtype_size(out.view.dtype)) <= bytes;
}

// The number of a torch.device and its current stream; false where torch does not tell.
bool find_stream(PyObject* device, TensorView& view) {
  static PyObject* const current = imported("torch._C", "_cuda_getCurrentRawStream");
  const Ref index(attribute(device, "index"));
  if (current == nullptr || !index || index.get() == Py_None) return false;
  const Ref stream(PyObject_CallFunctionObjArgs(current, index.get(), nullptr));
  view.device_index = static_cast<int>(PyLong_AsLong(index.get()));
  if (stream) view.stream = PyLong_AsVoidPtr(stream.get());
  if (PyErr_Occurred() == nullptr) return static_cast<bool>(stream);
  PyErr_Clear();
  return false;
}

// torch without the C exchange (before 2.10), and the names of what it cannot describe.
Access read_by_hand(PyObject* object, TensorAccess& out) {
  const Ref layout(attribute(object, "layout"));
  const std::string layout_name = last_part(text_of(layout.get()));
  if (layout_name.empty()) return refuse(out, "unreadable");
  if (layout_name != "strided") return refuse(out, layout_name.substr(layout_name[0] == '_'));
  if (attribute_is_true(object, "is_quantized")) return refuse(out, "quantized");
  if (attribute_is_true(object, "is_nested")) return refuse(out, "nested");
  const Ref device(attribute(object, "device"));
  const Ref device_type(device ? attribute(device.get(), "type") : nullptr);
  const std::string device_name = text_of(device_type.get());
  if (device_name == "meta") return refuse(out, "meta");
  const bool on_device = device_name != "cpu";
  out.view.device = Device::cpu;
  if (on_device) {
    if (device_name.empty()) return refuse(out, "unreadable");
    out.view.device = device_name == "cuda" ? Device::cuda : Device::other;
    if (out.view.device == Device::other) return Access::not_cpu;
  }
  const Ref dtype_object(attribute(object, "dtype"));
  const std::string dtype_text = last_part(text_of(dtype_object.get()));
  const std::optional<DType> dtype = dtype_from_name(dtype_text);
  if (!dtype && on_device) return Access::not_cpu;
  if (!dtype) return refuse(out, dtype_text);
  if (call_is_true(object, "is_neg")) return refuse(out, "neg_view");
  const Ref shape(attribute(object, "shape"));
  const Ref strides(call(object, "stride"));
  const int ndim = read_tuple(shape.get(), out.sizes);
  if (ndim < 0 || read_tuple(strides.get(), out.strides) != ndim) return refuse(out, "unreadable");
  Ref address(call(object, "const_data_ptr"));
  const Ref pointer(address ? address.release() : call(object, "data_ptr"));
  out.view.data = pointer ? PyLong_AsVoidPtr(pointer.get()) : nullptr;
  if (!pointer || PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return refuse(out, "unreadable");
  }
  out.view.dtype = *dtype;
  out.view.ndim = ndim;
  out.view.sizes = out.sizes.data();
  out.view.strides = out.strides.data();
  if (!hold_storage(object, out)) return refuse(out, kTooSmall);
  if (out.view.data == nullptr && element_count(out.view) > 0) return refuse(out, "unreadable");
  if (!on_device) return Access::ok;
  out.is_complete = find_stream(device.get(), out.view);
  return Access::not_cpu;
}

// False where torch lacks the bit.
bool is_negative(PyObject* object) {
  static PyObject* const predicate = method_of_tensor("is_neg");
  if (predicate == nullptr) return false;
  std::optional<NoFunctions> unseen;
  if (type_info(Py_TYPE(object)).has_function) unseen.emplace();
  const Ref answer(PyObject_CallFunctionObjArgs(predicate, object, nullptr));
  if (!answer) PyErr_Clear();
  return answer.get() == Py_True;
}

// A negative view of public torch comes from the imaginary part of a conjugate, so it has a gap
// between its elements unless it has only one; asking every tensor would cost more than the rest of
// reading it.
bool may_be_negative(const TensorView& view) {
  std::int64_t run = 1;
  for (int i = view.ndim - 1; i >= 0; --i) {
    if (view.sizes[i] != 1 && view.strides[i] != run) return true;
    run *= view.sizes[i];
  }
  return run == 1;
}

Access read_exchange(const dlpack::ExchangeApi& api, PyObject* object, TensorAccess& out,
                     bool asks_all) {
  dlpack::Tensor tensor;
  if (api.tensor_from_object(object, &tensor) != 0) {
    PyErr_Clear();
    return read_by_hand(object, out);
  }
  const Access access = take(tensor, out);
  if (access == Access::refused) return read_by_hand(object, out);
  const bool on_device = access == Access::not_cpu;
  if (on_device && out.view.sizes == nullptr) return access;
  if (!hold_storage(object, out)) return refuse(out, kTooSmall);
  if ((asks_all || may_be_negative(out.view)) && is_negative(object)) {
    return refuse(out, "neg_view");
  }
  if (on_device && api.current_stream != nullptr) {
    out.is_complete =
        api.current_stream(tensor.device_type, tensor.device_id, &out.view.stream) == 0;
    if (!out.is_complete) PyErr_Clear();
  }
  return access;
}

Access read_numpy(PyObject* object, TensorAccess& out) {
  const Ref dtype_object(attribute(object, "dtype"));
  const Ref name(dtype_object ? attribute(dtype_object.get(), "name") : nullptr);
  const std::string dtype_text = text_of(name.get());
  const std::optional<DType> dtype = dtype_from_name(dtype_text);
  if (!dtype) return refuse(out, dtype_text.empty() ? "unreadable" : dtype_text);
  const Ref native(attribute(dtype_object.get(), "isnative"));
  if (native.get() != Py_True) return refuse(out, "byte_order");
  const Ref shape(attribute(object, "shape"));
  const Ref strides(attribute(object, "strides"));
  const Ref ctypes_interface(attribute(object, "__array_interface__"));
  PyObject* data = ctypes_interface && PyDict_Check(ctypes_interface.get())
                       ? PyDict_GetItemString(ctypes_interface.get(), "data")
                       : nullptr;
  const int ndim = read_tuple(shape.get(), out.sizes);
  if (data == nullptr || !PyTuple_Check(data) || ndim < 0 ||
      read_tuple(strides.get(), out.strides) != ndim) {
    return refuse(out, "unreadable");
  }
  out.view.data = PyLong_AsVoidPtr(PyTuple_GetItem(data, 0));
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return refuse(out, "unreadable");
  }
  const auto item = static_cast<std::int64_t>(dtype_size(*dtype));
  for (int i = 0; i < ndim; ++i) {
    const auto d = static_cast<std::size_t>(i);
    if (out.sizes[d] > 1 && out.strides[d] % item != 0) return refuse(out, "unaligned_strides");
    out.strides[d] /= item;  // bytes to elements
  }
  out.view.device = Device::cpu;
  out.view.dtype = *dtype;
  out.view.ndim = ndim;
  out.view.sizes = out.sizes.data();
  out.view.strides = out.strides.data();
  return Access::ok;
}

bool is_elsewhere(PyObject* object, TensorAccess& out) {
  if (lower(text_of(Ref(attribute(object, "device")).get())) == "cpu") return false;
  out.view.device = Device::other;
  return true;
}

// asnumpy() waits for the values, and copies those that are not in the memory of the host.
Access read_old_mindspore(PyObject* object, TensorAccess& out) {
  if (is_elsewhere(object, out)) return Access::not_cpu;
  Ref array(call(object, "asnumpy"));
  if (!array) {
    return refuse(out, "unreadable");
  }
  const Access access = read_numpy(array.get(), out);
  if (access == Access::ok) out.owner = array.release();
  return access;
}

// MindSpore computes on threads of its own: its data_ptr() waits until the values are there.
Access read_mindspore(PyObject* object, TensorAccess& out) {
  if (is_elsewhere(object, out)) return Access::not_cpu;
  const std::string dtype_text = lower(text_of(Ref(attribute(object, "dtype")).get()));
  const std::optional<DType> dtype = dtype_from_name(dtype_text);
  if (!dtype) return refuse(out, dtype_text.empty() ? "unreadable" : dtype_text);
  const Ref shape(attribute(object, "shape"));
  const Ref strides(call(object, "stride"));
  const int ndim = read_tuple(shape.get(), out.sizes);
  if (ndim < 0 || read_tuple(strides.get(), out.strides) != ndim) return refuse(out, "unreadable");
  const Ref pointer(call(object, "data_ptr"));
  out.view.data = pointer ? PyLong_AsVoidPtr(pointer.get()) : nullptr;
  out.view.device = Device::cpu;
  out.view.dtype = *dtype;
  out.view.ndim = ndim;
  out.view.sizes = out.sizes.data();
  out.view.strides = out.strides.data();
  const bool has_memory = out.view.data != nullptr || element_count(out.view) == 0;
  return has_memory && PyErr_Occurred() == nullptr ? Access::ok : refuse(out, "unreadable");
}

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

Access read(PyObject* object, TensorAccess& out, bool asks_all) {
  const TypeInfo& type = type_info(Py_TYPE(object));
  switch (type.way) {
    case Way::exchange:
      return read_exchange(*type.api, object, out, asks_all);
    case Way::by_hand:
      return read_by_hand(object, out);
    case Way::numpy:
      return read_numpy(object, out);
    case Way::mindspore:
      return read_mindspore(object, out);
    case Way::old_mindspore:
      return read_old_mindspore(object, out);
    case Way::dlpack:
      return read_dlpack(object, out);
    case Way::refused:
      break;
  }
  return refuse(out, type.reason);
}

}  // namespace

Access read_tensor(PyObject* object, TensorAccess& out, bool asks_all) noexcept {
  Py_CLEAR(out.owner);
  out.view = {};
  out.is_complete = false;
  out.reason.clear();
  Access access = Access::refused;
  try {
    access = read(object, out, asks_all);
  } catch (const std::exception&) {  // no memory for a name
    out.reason.clear();
  }
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return access;
}

}  // namespace trainmon
