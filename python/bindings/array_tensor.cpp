// Reads arrays of NumPy and tensors of MindSpore.
#include <optional>
#include <string>

#include "ref.h"
#include "tensor_readers.h"

namespace trainmon {

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

namespace {

bool is_elsewhere(PyObject* object, TensorAccess& out) {
  if (lower(text_of(Ref(attribute(object, "device")).get())) == "cpu") return false;
  out.view.device = Device::other;
  return true;
}

}  // namespace

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

}  // namespace trainmon
