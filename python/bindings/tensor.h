// Looks at a Python tensor without copying it: torch.Tensor, numpy.ndarray,
// mindspore.Tensor, anything with __dlpack__.
#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trainmon/tensor.h"

namespace trainmon {

enum class Access : std::uint8_t {
  ok,       // `view` can be measured
  not_cpu,  // on another device, `view.device`; `view` is filled in where `is_complete` says so
  refused,  // never measured: `reason` says why in one short stable word
};

// What read_tensor() found. Valid while the object is alive, unchanged, and this is; destroy it
// with the GIL held. About 1 KB: reuse one for many tensors.
struct TensorAccess {
  TensorAccess() = default;
  TensorAccess(const TensorAccess&) = delete;
  TensorAccess& operator=(const TensorAccess&) = delete;
  ~TensorAccess() { Py_XDECREF(owner); }

  static constexpr int kMaxDims = 64;
  TensorView view;  // points into sizes and strides
  // "complex64", "sparse_coo", "neg_view", "meta", "quantized", "nested", "dtensor", "object",
  // "byte_order", "storage_too_small", "overlapping", "unreadable", or the name of a dtype or type
  // that is not measured
  std::string reason;
  bool is_complete = false;   // not_cpu: a CUDA tensor, with everything a kernel needs
  PyObject* owner = nullptr;  // keeps the memory alive: a storage, DLPack capsule or NumPy array
  std::array<std::int64_t, kMaxDims> sizes;
  std::array<std::int64_t, kMaxDims> strides;
};

// Descriptions of several tensors, kept after what read_tensor() found is used again.
struct TensorViews {
  std::vector<TensorView> views;
  std::vector<std::int64_t> extents;  // sizes, then strides, of one after another

  void add(const TensorAccess& tensor) {
    const auto ndim = static_cast<std::size_t>(tensor.view.ndim);
    views.push_back(tensor.view);
    extents.insert(extents.end(), tensor.sizes.begin(), tensor.sizes.begin() + ndim);
    if (tensor.view.strides == nullptr) return;
    extents.insert(extents.end(), tensor.strides.begin(), tensor.strides.begin() + ndim);
  }
  // Once nothing moves any more.
  void point_at_extents() {
    const std::int64_t* next = extents.data();
    for (TensorView& view : views) {
      view.sizes = next;
      next += view.ndim;
      if (view.strides == nullptr) continue;
      view.strides = next;
      next += view.ndim;
    }
  }
  void clear() {
    views.clear();
    extents.clear();
  }
};

// Describes `object`. Call with the GIL held and no Python exception set; none is set afterwards.
// Copies no element and keeps nothing but `owner`. A torch.Tensor costs about 0.1 us; autograd
// and the version counter are left alone. A copy-on-write clone (torch._lazy_clone) gets memory
// of its own where torch has the C exchange, as by data_ptr(). Asking every tensor whether it is
// one would cost as much as the rest. Subclasses that compute their own operations (DTensor,
// FakeTensor, ...) are refused by their name. A contiguous tensor with torch's negative bit, as
// only torch._neg_view makes one, is seen with `asks_all` alone, which costs as much again.
Access read_tensor(PyObject* object, TensorAccess& out, bool asks_all = false) noexcept;

}  // namespace trainmon
