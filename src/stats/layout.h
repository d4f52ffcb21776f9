// The elements of a view in memory order, whatever the view's own order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "trainmon/tensor.h"

namespace trainmon {

inline constexpr int kMaxDims = 64;  // torch and NumPy allow no more

// A view without the order of its elements, which no statistic needs. Dimensions of size 1 are
// gone, of stride 0 counted in `multiplicity`, of negative stride turned round. The rest is
// sorted from the innermost outwards and joined where it can be. Every dense tensor ends as one
// run.
struct Layout {
  const std::byte* base = nullptr;
  std::size_t item = 0;           // bytes per element
  std::int64_t elements = 0;      // to be read; 0 for an empty tensor
  std::int64_t multiplicity = 1;  // how often each of them counts
  int ndim = 0;
  std::array<std::int64_t, kMaxDims> sizes;
  std::array<std::int64_t, kMaxDims> strides;

  bool contiguous() const { return ndim == 0 || (ndim == 1 && strides[0] == 1); }
};

[[noreturn]] void refuse_sizes(int ndim);
// Throws std::invalid_argument for less than 0 dimensions, more than kMaxDims, and sizes that are
// not there.
inline std::span<const std::int64_t> sizes_of(const TensorView& tensor) {
  const bool has_sizes = tensor.ndim == 0 || tensor.sizes != nullptr;
  if (tensor.ndim < 0 || tensor.ndim > kMaxDims || !has_sizes) refuse_sizes(tensor.ndim);
  return {tensor.sizes, static_cast<std::size_t>(tensor.ndim)};
}

// Throws std::invalid_argument where sizes_of() does.
Layout layout_of(const TensorView& tensor);
// The same for what must not be reordered. The dimensions are as they are (those of stride 0 too,
// so `multiplicity` is 1), joined where they can be. A C-contiguous tensor ends as one run, and
// then layout_of() describes the same run.
Layout c_order_of(const TensorView& tensor);
// layout_of(), for a tensor that is to be read: throws std::invalid_argument also when it is not on
// the CPU or has elements but no data.
Layout checked_layout(const TensorView& tensor);

// Whether a look at each element that a view names would take seconds, where only so many differ.
inline bool are_mostly_repeated(double named, double different) {
  constexpr double kMost = 1 << 24;
  constexpr double kTimes = 8.0;
  return named > kMost && named > kTimes * different;
}
// The same of an expanded view.
bool is_mostly_repeated(const TensorView& tensor);

// Copies elements [begin, begin + n) of the layout's order to `to`. Strides may have any sign here.
void copy_elements(const Layout& layout, std::int64_t begin, std::int64_t n, std::byte* to);

}  // namespace trainmon
