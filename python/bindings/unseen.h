// Calls of torch that nobody of the user's sees.
#pragma once

#include <optional>

#include "ref.h"

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

}  // namespace trainmon
