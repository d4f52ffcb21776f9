// Reads tensors of torch: the C exchange of DLPack where the type offers it, else by hand.
#include <optional>
#include <string>

#include "ref.h"
#include "stats/layout.h"
#include "tensor_readers.h"
#include "tensor_type.h"
#include "unseen.h"

namespace trainmon {
namespace {

// "torch.float32" -> "float32", "my.module.DTensor" -> "DTensor".
std::string last_part(std::string text) {
  return text.substr(text.rfind('.') + 1);
}

// A method of torch.Tensor; null where torch lacks it.
PyObject* method_of_tensor(const char* name) {
  const Ref tensor(imported("torch", "Tensor"));
  return tensor ? attribute(tensor.get(), name) : nullptr;
}

// A view such as unfold() may name each element of a small storage any number of times.
bool overlaps(const TensorAccess& tensor, std::int64_t span) {
  double named = 1.0;
  for (int i = 0; i < tensor.view.ndim; ++i) {
    const auto d = static_cast<std::size_t>(i);
    if (tensor.strides[d] != 0) named *= static_cast<double>(tensor.sizes[d]);
  }
  return are_mostly_repeated(named, static_cast<double>(span));
}

constexpr const char* kTooSmall = "storage_too_small";

// Takes hold of the memory of a torch tensor whose view is filled in: another thread may give the
// tensor other memory meanwhile. Gives why it is refused, or nullptr. It may be smaller than the
// sizes say (resize_() of a storage leaves them), which nothing else tells.
const char* hold_storage(PyObject* object, TensorAccess& out) {
  static PyObject* const storage_of = method_of_tensor("untyped_storage");
  static PyObject* const offset_of = method_of_tensor("storage_offset");
  if (storage_of == nullptr || offset_of == nullptr) return nullptr;  // torch 1
  std::optional<NoFunctions> unseen;
  if (type_info(Py_TYPE(object)).has_function) unseen.emplace();
  std::int64_t last = 0;
  for (int i = 0; i < out.view.ndim; ++i) {
    const auto d = static_cast<std::size_t>(i);
    if (out.sizes[d] == 0) return nullptr;
    last += (out.sizes[d] - 1) * out.strides[d];
  }
  out.owner = PyObject_Vectorcall(storage_of, &object, 1, nullptr);
  const Ref offset(PyObject_Vectorcall(offset_of, &object, 1, nullptr));
  if (out.owner == nullptr || !offset) return kTooSmall;
  const std::int64_t end = PyLong_AsLongLong(offset.get()) + last + 1;
  const Py_ssize_t bytes = PyObject_Size(out.owner);
  if (end * static_cast<std::int64_t>(dtype_size(out.view.dtype)) > bytes) return kTooSmall;
  return overlaps(out, last + 1) ? "overlapping" : nullptr;
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

}  // namespace

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
  if (const char* const why = hold_storage(object, out)) return refuse(out, why);
  if (out.view.data == nullptr && element_count(out.view) > 0) return refuse(out, "no_data");
  if (!on_device) return Access::ok;
  out.is_complete = find_stream(device.get(), out.view);
  return Access::not_cpu;
}

namespace {

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

// A negative view of public torch comes from the imaginary part of a conjugate. So it has a gap
// between its elements unless it has only one. Asking every tensor would cost more than the rest
// of reading it.
bool may_be_negative(const TensorView& view) {
  std::int64_t run = 1;
  for (int i = view.ndim - 1; i >= 0; --i) {
    if (view.sizes[i] != 1 && view.strides[i] != run) return true;
    run *= view.sizes[i];
  }
  return run == 1;
}

}  // namespace

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
  if (const char* const why = hold_storage(object, out)) return refuse(out, why);
  if (out.view.data == nullptr && element_count(out.view) > 0) return refuse(out, "no_data");
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

}  // namespace trainmon
