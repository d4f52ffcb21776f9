// One reader of tensors for each way to read one, behind read_tensor().
#pragma once

#include <Python.h>

#include <string>
#include <utility>

#include "dlpack.h"
#include "tensor.h"

namespace trainmon {

inline Access refuse(TensorAccess& out, std::string reason) {
  out.reason = std::move(reason);
  return Access::refused;
}

// Takes a description over; of a device, `view.sizes` stays null where kernels cannot read it.
Access take(const dlpack::Tensor& tensor, TensorAccess& out);
Device device_of(dlpack::DeviceType type);

// Reads a tuple or list of integers; -1 when it is none or too long.
inline int read_tuple(PyObject* tuple, std::array<std::int64_t, TensorAccess::kMaxDims>& out) {
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

// torch, by its C exchange and without.
Access read_exchange(const dlpack::ExchangeApi& api, PyObject* object, TensorAccess& out,
                     bool asks_all);
Access read_by_hand(PyObject* object, TensorAccess& out);
Access read_numpy(PyObject* object, TensorAccess& out);
Access read_mindspore(PyObject* object, TensorAccess& out);
Access read_old_mindspore(PyObject* object, TensorAccess& out);
// Anything with __dlpack__.
Access read_dlpack(PyObject* object, TensorAccess& out);

}  // namespace trainmon
