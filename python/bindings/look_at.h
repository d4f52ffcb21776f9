// A Python tensor handed to a measurement: what all calls made per tensor have in common.
#pragma once

#include <Python.h>

#include <cstdint>

#include "gil.h"
#include "parts.h"
#include "tensor.h"
#include "trainmon/monitor.h"

namespace trainmon {

// Null and a Python exception for what is no handle of a Monitor.
inline Monitor* monitor_of(PyObject* capsule) {
  return static_cast<Monitor*>(PyCapsule_GetPointer(capsule, kCapsule));
}

// Above this many elements the work is long enough for other Python threads to go on meanwhile.
inline constexpr std::int64_t kReleaseGilAbove = 1 << 16;

// Measures without the GIL when that is worth it.
template <typename Observe>
Observed measured(const TensorAccess& tensor, Observe&& observe) {
  if (element_count(tensor.view) < kReleaseGilAbove) return observe(tensor.view);
  const ReleasedGil released;
  return observe(tensor.view);
}

// Calls observe(view) for a tensor of the CPU or of CUDA; None is idle. No tensor makes it raise.
// Call with the GIL held and no exception set, while somebody holds `object`.
template <typename Observe>
Observed look_at(Monitor& monitor, PyObject* object, Observe&& observe) {
  if (object == Py_None) return Observed::idle;
  TensorAccess tensor;
  switch (read_tensor(object, tensor)) {
    case Access::ok:
      return measured(tensor, observe);
    case Access::not_cpu:
      return tensor.is_complete ? observe(tensor.view) : Observed::elsewhere;
    case Access::refused:
      monitor.refuse(tensor.reason);
      return Observed::refused;
  }
  return Observed::refused;
}

}  // namespace trainmon
