// What is called per tensor: plain CPython calls, nothing allocated, nothing raised for a tensor's
// sake.
#include <nanobind/nanobind.h>

#include <cmath>
#include <exception>
#include <new>
#include <vector>

#include "base/of_thread.h"
#include "init.h"
#include "look_at.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

// Tensors of CUDA devices, to be measured by one launch. Reused, so that nothing is allocated.
struct OnDevice : TensorViews {
  std::vector<SeriesId> series;
  std::vector<Py_ssize_t> places;  // in the list that was given
  std::vector<Observed> done;

  void clear() {
    TensorViews::clear();
    series.clear();
    places.clear();
  }
  void add(SeriesId id, const TensorAccess& tensor, Py_ssize_t place) {
    TensorViews::add(tensor);
    series.push_back(id);
    places.push_back(place);
  }
  void measure(Monitor& monitor, std::uint32_t flags, const TensorView* scale) {
    point_at_extents();
    done.resize(views.size());
    monitor.observe_all(series, views, done, flags, scale);
  }
};

// The loss scale that gradients of a sweep still have in them.
struct LossScale {
  TensorAccess tensor;
  bool is_given = false;
  bool is_on_device = false;  // a float32 number of a CUDA device
  double value = 0.0;         // where it is known, else 0

  explicit LossScale(PyObject* object) {
    if (object == Py_None) return;
    is_given = true;
    const Access access = read_tensor(object, tensor);
    const bool is_number = access != Access::refused &&
                           (access == Access::ok || tensor.is_complete) &&
                           tensor.view.dtype == DType::float32 && element_count(tensor.view) == 1;
    is_on_device = is_number && access == Access::not_cpu;
    if (!is_number || is_on_device) return;
    const double number = *static_cast<const float*>(tensor.view.data);
    if (number > 0.0 && std::isfinite(number)) value = number;
  }
};

bool enough(Py_ssize_t given, Py_ssize_t least, Py_ssize_t most, const char* name) {
  if (given >= least && given <= most) return true;
  PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd arguments, not %zd", name, least, most,
               given);
  return false;
}

PyObject* observe_call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!enough(count, 3, 4, "observe")) return nullptr;
  Monitor* monitor = monitor_of(args[0]);
  if (monitor == nullptr) return nullptr;
  const auto series = static_cast<SeriesId>(PyLong_AsUnsignedLong(args[1]));
  const auto flags = count > 3 ? static_cast<std::uint32_t>(PyLong_AsUnsignedLong(args[3])) : 0u;
  if (PyErr_Occurred() != nullptr) return nullptr;
  const Observed done = look_at(*monitor, args[2], [&](const TensorView& view) {
    return monitor->observe(series, view, flags);
  });
  return PyLong_FromLong(static_cast<long>(done));
}

PyObject* observe_at_call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!enough(count, 6, 7, "observe_at")) return nullptr;
  Monitor* monitor = monitor_of(args[0]);
  if (monitor == nullptr) return nullptr;
  const auto series = static_cast<SeriesId>(PyLong_AsUnsignedLong(args[1]));
  const std::int64_t window = PyLong_AsLongLong(args[3]);
  const auto accum = static_cast<std::int32_t>(PyLong_AsLong(args[4]));
  const auto call = static_cast<std::int32_t>(PyLong_AsLong(args[5]));
  const auto flags = count > 6 ? static_cast<std::uint32_t>(PyLong_AsUnsignedLong(args[6])) : 0u;
  if (PyErr_Occurred() != nullptr) return nullptr;
  const Observed done = look_at(*monitor, args[2], [&](const TensorView& view) {
    return monitor->observe_at(series, view, window, accum, call, flags);
  });
  return PyLong_FromLong(static_cast<long>(done));
}

PyObject* sweep_call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!enough(count, 4, 6, "sweep")) return nullptr;
  Monitor* monitor = monitor_of(args[0]);
  if (monitor == nullptr) return nullptr;
  if (!PyList_Check(args[1]) || !PyList_Check(args[2]) ||
      PyList_Size(args[1]) != PyList_Size(args[2])) {
    PyErr_SetString(PyExc_TypeError, "sweep() takes two lists of the same length");
    return nullptr;
  }
  const auto flags = count > 4 ? static_cast<std::uint32_t>(PyLong_AsUnsignedLong(args[4])) : 0u;
  if (PyErr_Occurred() != nullptr) return nullptr;
  const LossScale scale(count > 5 ? args[5] : Py_None);
  const std::uint32_t still_scaled = scale.is_given ? flag::kStillScaled : 0u;
  nb::object elsewhere;
  const auto measure_elsewhere = [&](Py_ssize_t i) {
    if (!elsewhere.is_valid()) elsewhere = nb::list();
    nb::cast<nb::list>(elsewhere).append(i);
  };
  OnDevice* on_device = nullptr;
  for (Py_ssize_t i = 0; i < PyList_Size(args[1]) && i < PyList_Size(args[2]); ++i) {
    const auto series = static_cast<SeriesId>(PyLong_AsUnsignedLong(PyList_GetItem(args[1], i)));
    if (PyErr_Occurred() != nullptr) return nullptr;
    nb::object value = nb::borrow(PyList_GetItem(args[2], i));
    if (args[3] != Py_None) {
      value = nb::steal(PyObject_GetAttr(value.ptr(), args[3]));
      if (!value.is_valid()) return nullptr;
    }
    if (value.is_none()) continue;
    TensorAccess tensor;
    const Access access = read_tensor(value.ptr(), tensor);
    if (access == Access::refused) monitor->refuse(tensor.reason);
    if (access == Access::ok) {
      measured(tensor, [&](const TensorView& view) {
        if (scale.value > 0.0) return monitor->observe_scaled(series, view, scale.value, flags);
        return monitor->observe(series, view, flags | still_scaled);
      });
    }
    if (access != Access::not_cpu) continue;
    if (tensor.is_complete) {
      if (on_device == nullptr) {
        on_device = &of_thread<OnDevice>();
        on_device->clear();
      }
      on_device->add(series, tensor, i);
    } else {
      measure_elsewhere(i);
    }
  }
  if (on_device != nullptr) {
    const bool is_divided = scale.is_on_device;
    on_device->measure(*monitor, is_divided ? flags : flags | still_scaled,
                       is_divided ? &scale.tensor.view : nullptr);
    for (std::size_t i = 0; i < on_device->done.size(); ++i) {
      if (on_device->done[i] == Observed::elsewhere) measure_elsewhere(on_device->places[i]);
    }
  }
  if (elsewhere.is_valid()) return elsewhere.release().ptr();
  Py_RETURN_NONE;
}

// Python's C code stands between these calls and whoever could catch an exception.
template <auto call>
PyObject* raising(PyObject* self, PyObject* const* args, Py_ssize_t count) noexcept {
  try {
    return call(self, args, count);
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <auto call>
PyCFunction of_fast_call() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(raising<call>));
}

PyMethodDef fast_calls[] = {
    {"observe", of_fast_call<observe_call>(), METH_FASTCALL,
     "observe(handle, series, tensor, flags=0) -> int\n\nMeasures one tensor at the open window "
     "and accum of the series' optimizer.\n0 recorded, 1 idle, 2 on a device without kernels here, "
     "3 refused."},
    {"observe_at", of_fast_call<observe_at_call>(), METH_FASTCALL,
     "observe_at(handle, series, tensor, window, accum, call, flags=0) -> int\n\nMeasures one "
     "tensor at a given address."},
    {"sweep", of_fast_call<sweep_call>(), METH_FASTCALL,
     "sweep(handle, series, tensors, attribute, flags=0, scale=None) -> list[int] | "
     "None\n\nobserve() "
     "for each pair; with an attribute name, of that attribute of each; None is skipped. What is "
     "measured is divided by `scale`, a tensor of one number.\nReturns the indices of tensors on "
     "devices without kernels here."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void add_fast_calls(nb::module_& module) {
  PyModule_AddFunctions(module.ptr(), fast_calls);
}

}  // namespace trainmon
