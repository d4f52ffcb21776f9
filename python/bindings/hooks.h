// What types of ours that torch calls have in common.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>

#include "held.h"
#include "training.h"
#include "unseen.h"

namespace trainmon {

inline nb::object interned(const char* text) {
  return nb::steal(PyUnicode_InternFromString(text));
}

// Attributes of torch's objects that are looked up at every call, and what torch offers.
struct Names {
  nb::object grad = interned("grad"), grad_fn = interned("grad_fn");
  nb::object output_nr = interned("output_nr"), requires_grad = interned("requires_grad");
  nb::object next_functions = interned("next_functions");
  nb::object sequence_nr = interned("_sequence_nr");
  nb::object backward_hooks = interned("_backward_hooks");
  nb::object register_hook_dict = interned("_register_hook_dict");
  nb::object register_hook = interned("register_hook");
  nb::object pass_on = nb::module_::import_("trainmon.base.signals").attr("pass_on");
  nb::object tensor = nb::module_::import_("torch").attr("Tensor");
  nb::object parameter = nb::module_::import_("torch").attr("nn").attr("Parameter");
  nb::object ordered_dict = nb::module_::import_("collections").attr("OrderedDict");
};
inline const Names& names() {
  static const Names* const known = new Names;  // never destroyed: the interpreter ends first
  return *known;
}

inline long integer(const nb::object& number) {
  const long value = PyLong_AsLong(number.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return value;
}
// Whether an exception is none of the user's: neither an interrupt nor what a signal handler of his
// raised.
inline bool is_ours(nb::python_error& error) {
  if (!error.matches(PyExc_Exception)) return false;
  try {
    names().pass_on(error.value());
    return true;
  } catch (nb::python_error&) {
    return false;
  }
}

// The call of a hook: an error switches its part off, what is no error (an interrupt) is the
// user's. find_part() gives a Held<Part>, one that is not there where there is nothing to do.
template <typename FindPart, typename Work>
PyObject* guarded(FindPart&& find_part, Work&& work) noexcept {
  try {
    const Held<Part> part = find_part();
    if (!part.is_there() || !part->on) Py_RETURN_NONE;
    const UnseenByModes unseen;
    try {
      work();
    } catch (nb::python_error& error) {
      if (!is_ours(error)) throw;
      kFailed(part, error.value());
    } catch (const std::exception& error) {
      kFailed(part, nb::handle(PyExc_RuntimeError)(error.what()));
    }
  } catch (nb::python_error& error) {
    if (!is_ours(error)) {
      error.restore();
      return nullptr;
    }
  } catch (const std::exception&) {  // there is nobody to tell: training goes on
  }
  Py_RETURN_NONE;
}

template <typename T, ternaryfunc call>
PyType_Slot collected_hook[] = {{Py_tp_call, reinterpret_cast<void*>(call)},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse<T>)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear<T>)},
                                {0, nullptr}};

// Copies and pickles of hooks do nothing, wherever they are loaded: as those of hook.py.
inline nb::tuple inert(nb::handle) {
  const nb::object context = nb::module_::import_("contextlib").attr("nullcontext")();
  return nb::make_tuple(nb::module_::import_("builtins").attr("getattr"),
                        nb::make_tuple(context, "__exit__"));
}

}  // namespace trainmon
