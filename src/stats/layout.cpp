// Turns a view into runs of memory.
#include "stats/layout.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace trainmon {
namespace {

template <std::size_t item>
void copy_run(const std::byte* from, std::int64_t stride, std::int64_t n, std::byte* to) {
  if (stride == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * item);
    return;
  }
  const std::int64_t step = stride * static_cast<std::int64_t>(item);
  for (std::int64_t i = 0; i < n; ++i, from += step, to += item) std::memcpy(to, from, item);
}

// What every layout begins with: one run, which a tensor without strides is.
Layout start(const TensorView& tensor) {
  sizes_of(tensor);
  Layout out;
  out.base = static_cast<const std::byte*>(tensor.data);
  out.item = dtype_size(tensor.dtype);
  out.elements = element_count(tensor);
  if (out.elements == 0) return out;
  out.ndim = 1;
  out.sizes[0] = out.elements;
  out.strides[0] = 1;
  return out;
}

// Neighbours that are one run become one dimension.
void join_dimensions(Layout& out) {
  if (out.ndim == 0) return;
  std::size_t joined = 0;
  for (std::size_t i = 1; i < static_cast<std::size_t>(out.ndim); ++i) {
    if (out.strides[i] == out.strides[joined] * out.sizes[joined]) {
      out.sizes[joined] *= out.sizes[i];
    } else {
      ++joined;
      out.sizes[joined] = out.sizes[i];
      out.strides[joined] = out.strides[i];
    }
  }
  out.ndim = static_cast<int>(joined) + 1;
}

}  // namespace

void refuse_sizes(int ndim) {
  if (ndim > kMaxDims) throw std::invalid_argument("a tensor of more than 64 dimensions");
  throw std::invalid_argument("a tensor of " + std::to_string(ndim) + " dimensions without sizes");
}

bool is_mostly_repeated(const TensorView& tensor) {
  double all = 1.0, different = 1.0;
  for (int i = 0; tensor.strides != nullptr && i < tensor.ndim; ++i) {
    const auto size = static_cast<double>(tensor.sizes[i]);
    all *= size;
    if (tensor.strides[i] != 0) different *= size;
  }
  return are_mostly_repeated(all, different);
}

Layout layout_of(const TensorView& tensor) {
  Layout out = start(tensor);
  if (out.elements == 0 || tensor.strides == nullptr) return out;
  out.ndim = 0;
  for (int i = 0; i < tensor.ndim; ++i) {
    const std::int64_t size = tensor.sizes[i];
    std::int64_t stride = tensor.strides[i];
    if (size == 1) continue;
    if (stride == 0) {
      out.multiplicity *= size;
      continue;
    }
    if (stride < 0) {
      out.base += (size - 1) * stride * static_cast<std::int64_t>(out.item);
      stride = -stride;
    }
    int at = out.ndim++;  // insertion sort: views have few dimensions
    for (; at > 0 && out.strides[static_cast<std::size_t>(at - 1)] > stride; --at) {
      out.sizes[static_cast<std::size_t>(at)] = out.sizes[static_cast<std::size_t>(at - 1)];
      out.strides[static_cast<std::size_t>(at)] = out.strides[static_cast<std::size_t>(at - 1)];
    }
    out.sizes[static_cast<std::size_t>(at)] = size;
    out.strides[static_cast<std::size_t>(at)] = stride;
  }
  out.elements /= out.multiplicity;
  join_dimensions(out);
  return out;
}

Layout c_order_of(const TensorView& tensor) {
  Layout out = start(tensor);
  if (out.elements == 0 || tensor.strides == nullptr) return out;
  out.ndim = 0;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.sizes[i] == 1) continue;
    out.sizes[static_cast<std::size_t>(out.ndim)] = tensor.sizes[i];
    out.strides[static_cast<std::size_t>(out.ndim)] = tensor.strides[i];
    ++out.ndim;
  }
  join_dimensions(out);
  return out;
}

Layout checked_layout(const TensorView& tensor) {
  if (tensor.device != Device::cpu) throw std::invalid_argument("the tensor is not on the CPU");
  Layout layout = layout_of(tensor);
  if (layout.elements > 0 && tensor.data == nullptr) {
    throw std::invalid_argument("the tensor has elements but no data");
  }
  return layout;
}

void copy_elements(const Layout& layout, std::int64_t begin, std::int64_t n, std::byte* to) {
  const auto ndim = static_cast<std::size_t>(layout.ndim);
  const auto item = static_cast<std::int64_t>(layout.item);
  std::array<std::int64_t, kMaxDims> index;
  const std::byte* from = layout.base;
  for (std::size_t d = 0; d < ndim; ++d) {
    index[d] = begin % layout.sizes[d];
    begin /= layout.sizes[d];
    from += index[d] * layout.strides[d] * item;
  }
  while (n > 0) {
    const std::int64_t run = std::min(n, layout.sizes[0] - index[0]);
    switch (layout.item) {
      case 1:
        copy_run<1>(from, layout.strides[0], run, to);
        break;
      case 2:
        copy_run<2>(from, layout.strides[0], run, to);
        break;
      case 4:
        copy_run<4>(from, layout.strides[0], run, to);
        break;
      default:
        copy_run<8>(from, layout.strides[0], run, to);
    }
    to += run * item;
    n -= run;
    from -= index[0] * layout.strides[0] * item;
    index[0] = 0;
    for (std::size_t d = 1; n > 0 && d < ndim; ++d) {
      from += layout.strides[d] * item;
      if (++index[d] < layout.sizes[d]) break;
      from -= layout.sizes[d] * layout.strides[d] * item;
      index[d] = 0;
    }
  }
}

}  // namespace trainmon
