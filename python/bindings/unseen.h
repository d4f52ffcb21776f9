// Calls of torch that nobody of the user's sees.
#pragma once

#include <optional>

#include "ref.h"
#include "tensor_type.h"

namespace trainmon {

// While it is there, neither subclasses of tensors nor function modes see calls of this thread.
class NoFunctions {
 public:
  NoFunctions() {
    static PyObject* const type = imported("torch._C", "DisableTorchFunction");
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

// The same where a mode is active: it may draw random numbers at every call, such as that of a
// property. Asking costs some 30 ns.
class UnseenByModes {
 public:
  UnseenByModes() {
    static PyObject* const depth = imported("torch._C", "_len_torch_function_stack");
    if (depth == nullptr) return;
    const Ref count(PyObject_CallNoArgs(depth));
    if (!count) PyErr_Clear();
    if (count && PyLong_AsLong(count.get()) > 0) unseen_.emplace();
  }

 private:
  std::optional<NoFunctions> unseen_;
};

// Whether this is a tensor of a class that sees calls of torch, or has one in it: a container, not
// deep inside others. Of a large one it is taken to have.
inline bool may_see(PyObject* object, int depth = 4) {
  if (object == nullptr || object == Py_None) return false;
  const bool is_tuple = PyTuple_Check(object);
  if (is_tuple || PyList_Check(object)) {
    const Py_ssize_t size = is_tuple ? PyTuple_Size(object) : PyList_Size(object);
    if (depth == 0 || size > 64) return true;
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (may_see(is_tuple ? PyTuple_GetItem(object, i) : PyList_GetItem(object, i), depth - 1)) {
        return true;
      }
    }
    return false;
  }
  if (PyDict_Check(object)) {
    if (depth == 0 || PyDict_Size(object) > 64) return true;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value) != 0;) {
      if (may_see(value, depth - 1)) return true;
    }
    return false;
  }
  static PyObject* const tensor = imported("torch", "Tensor");
  return tensor != nullptr &&
         PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(tensor)) != 0 &&
         type_info(Py_TYPE(object)).has_function;
}

// While it is there, neither modes nor tensors of these see calls of this thread.
class UnseenBy {
 public:
  UnseenBy(PyObject* one, PyObject* other = nullptr) {
    if (may_see(one) || may_see(other)) unseen_.emplace();
  }

 private:
  UnseenByModes modes_;
  std::optional<NoFunctions> unseen_;
};

}  // namespace trainmon
