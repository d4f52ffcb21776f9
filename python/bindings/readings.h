// Tensors that were read lately and what was read, so that a tensor which one module returns and
// the next is given is read once. With the GIL held.
#pragma once

#include <Python.h>

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "hooks.h"
#include "tensor_type.h"
#include "trainmon/reading.h"
#include "unseen.h"

namespace trainmon {

// A tensor is known again by its object, its memory and its version counter. What is written past
// that counter (through .data, by a collective in place, by a kernel of the user) is not seen.
class Readings {
 public:
  // A tensor, as it is now, and what was read of it then: nothing if it has changed.
  struct State {
    const void* data = nullptr;  // where its memory must be for that
    long version = -1;           // -1: it counts none
    Reading reading;
  };

  State find(PyObject* tensor) const {
    const long version = version_of(tensor);
    for (const Known& one : known_) {
      if (one.state.version == version && version >= 0 && one.is(tensor)) return one.state;
    }
    return {nullptr, version, {}};
  }

  // In place of the one that was kept longest ago.
  void keep(PyObject* tensor, State&& state) {
    if (state.version < 0 || !state.reading.is_there()) return;
    nb::object reference = nb::steal(PyWeakref_NewRef(tensor, nullptr));
    if (!reference.is_valid()) return PyErr_Clear();
    known_[next_] = {std::move(reference), std::move(state)};
    next_ = (next_ + 1) % known_.size();
  }

  void forget() { known_ = {}; }

 private:
  struct Known {
    nb::object reference;  // weak
    State state;
    bool is(PyObject* tensor) const {
      return reference.is_valid() && PyWeakref_GetObject(reference.ptr()) == tensor;
    }
  };

  static long version_of(PyObject* tensor) {
    static const nb::object& name = *new nb::object(interned("_version"));
    std::optional<NoFunctions> unseen;
    if (type_info(Py_TYPE(tensor)).has_function) unseen.emplace();
    const nb::object version = nb::steal(PyObject_GetAttr(tensor, name.ptr()));
    const long number = version.is_valid() ? PyLong_AsLong(version.ptr()) : -1;
    if (PyErr_Occurred() != nullptr) PyErr_Clear();  // of inference mode: they do not count
    return number;
  }

  std::array<Known, 16> known_;  // of a module, its parts and the next one
  std::size_t next_ = 0;
};

}  // namespace trainmon
