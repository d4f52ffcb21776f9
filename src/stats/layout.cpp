// Turns a view into runs of memory.
#include "stats/layout.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

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

}  // namespace

Layout layout_of(const TensorView& tensor) {
  if (tensor.ndim > kMaxDims) throw std::invalid_argument("a tensor of more than 64 dimensions");
  Layout out;
  out.base = static_cast<const std::byte*>(tensor.data);
  out.item = dtype_size(tensor.dtype);
  const std::int64_t count = element_count(tensor);
  if (count == 0) return out;
  if (tensor.strides == nullptr) {
    out.elements = count;
    out.ndim = 1;
    out.sizes[0] = count;
    out.strides[0] = 1;
    return out;
  }
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
  out.elements = count / out.multiplicity;
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
  if (out.ndim > 0) out.ndim = static_cast<int>(joined) + 1;
  return out;
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
