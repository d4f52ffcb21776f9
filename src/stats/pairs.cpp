// Pairs of elements of two tensors, whatever their layouts.
#include "stats/pairs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "stats/cpu/gather.h"
#include "stats/layout.h"

namespace trainmon {
namespace {

constexpr std::int64_t kBlock = 1024;
constexpr std::size_t kAdamBins = 30;

// Hands out the elements of a view in the order of `dims`, outermost first.
class Walk {
 public:
  Walk(const TensorView& tensor, const std::vector<int>& dims)
      : dtype_(tensor.dtype),
        item_(static_cast<std::int64_t>(dtype_size(tensor.dtype))),
        at_(static_cast<const std::byte*>(tensor.data)) {
    std::vector<std::int64_t> strides(static_cast<std::size_t>(tensor.ndim), 1);
    for (int d = tensor.ndim - 2; d >= 0; --d) {
      const auto i = static_cast<std::size_t>(d);
      strides[i] = strides[i + 1] * std::max<std::int64_t>(tensor.sizes[d + 1], 1);
    }
    if (tensor.strides != nullptr) strides.assign(tensor.strides, tensor.strides + tensor.ndim);
    for (const int d : dims) {
      sizes_.push_back(tensor.sizes[d]);
      strides_.push_back(strides[static_cast<std::size_t>(d)] * item_);
    }
    index_.assign(dims.size(), 0);
    dense_ = true;
    std::int64_t expected = item_;
    for (std::size_t d = dims.size(); d-- > 0;) {
      dense_ = dense_ && (sizes_[d] == 1 || strides_[d] == expected);
      expected *= sizes_[d];
    }
  }

  void next(std::int64_t n, double* out) {
    if (dense_) {
      cpu::widen(dtype_, at_, n, out);
      at_ += n * item_;
      return;
    }
    std::array<std::byte, kBlock * sizeof(double)> block;
    for (std::int64_t i = 0; i < n; ++i) {
      std::memcpy(block.data() + i * item_, at_, static_cast<std::size_t>(item_));
      advance();
    }
    cpu::widen(dtype_, block.data(), n, out);
  }

 private:
  void advance() {
    for (std::size_t d = sizes_.size(); d-- > 0;) {
      at_ += strides_[d];
      if (++index_[d] < sizes_[d]) return;
      at_ -= strides_[d] * sizes_[d];
      index_[d] = 0;
    }
  }

  DType dtype_;
  std::int64_t item_;
  const std::byte* at_;
  std::vector<std::int64_t> sizes_, strides_, index_;
  bool dense_ = false;
};

// Calls look(a, b, n) with corresponding elements, in blocks.
template <class Look>
void walk_pairs(const TensorView& a, const TensorView& b, Look&& look) {
  if (a.device != Device::cpu || b.device != Device::cpu) {
    throw std::invalid_argument("the tensors are not on the CPU");
  }
  if (a.ndim != b.ndim || !std::equal(a.sizes, a.sizes + a.ndim, b.sizes)) {
    throw std::invalid_argument("the tensors have different sizes");
  }
  std::vector<int> dims(static_cast<std::size_t>(a.ndim));
  std::iota(dims.begin(), dims.end(), 0);
  // The order in which the first one lies in memory: the second mostly lies alike.
  if (a.strides != nullptr) {
    std::stable_sort(dims.begin(), dims.end(),
                     [&](int one, int two) { return a.strides[one] > a.strides[two]; });
  }
  Walk first(a, dims);
  Walk second(b, dims);
  std::array<double, kBlock> x;
  std::array<double, kBlock> y;
  for (std::int64_t left = element_count(a); left > 0;) {
    const std::int64_t n = std::min(left, kBlock);
    first.next(n, x.data());
    second.next(n, y.data());
    look(x.data(), y.data(), n);
    left -= n;
  }
}

std::int64_t sign(double x) {
  return static_cast<std::int64_t>(x > 0.0) - static_cast<std::int64_t>(x < 0.0);
}

// Sum of sign(x) sign(y). A product of two narrower numbers does not underflow in float64, so one
// comparison tells. Infinity times zero is NaN there, which is no sign, as it should be.
std::int64_t agreeing(const double* x, const double* y, std::int64_t n, bool may_underflow) {
  std::int64_t sum = 0;
  if (may_underflow) {
    for (std::int64_t i = 0; i < n; ++i) sum += sign(x[i]) * sign(y[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) sum += sign(x[i] * y[i]);
  }
  return sum;
}

void count(Histogram& histogram, double value) {
  if (std::isnan(value)) {
    ++histogram.nans;
  } else if (value < histogram.low) {
    ++histogram.below;
  } else if (value > histogram.high) {
    ++histogram.above;
  } else {
    const auto bins = static_cast<double>(histogram.bins.size());
    const double place =
        std::floor((value - histogram.low) / (histogram.high - histogram.low) * bins);
    ++histogram.bins[static_cast<std::size_t>(std::min(place, bins - 1.0))];
  }
}

}  // namespace

double sign_agreement(const TensorView& a, const TensorView& b) {
  const bool may_underflow = a.dtype == DType::float64 || b.dtype == DType::float64;
  std::int64_t sum = 0;
  walk_pairs(a, b, [&](const double* x, const double* y, std::int64_t n) {
    sum += agreeing(x, y, n, may_underflow);
  });
  const std::int64_t n = element_count(a);
  return n == 0 ? 1.0 : (static_cast<double>(sum) / static_cast<double>(n) + 1.0) / 2.0;
}

AdamHistograms adam_histograms(const TensorView& exp_avg, const TensorView& exp_avg_sq,
                               const AdamStep& at) {
  const Histogram empty{-1.0, 1.0, std::vector<std::int64_t>(kAdamBins, 0)};
  AdamHistograms both{empty, empty};
  const double first = 1.0 - std::pow(at.beta1, at.step);
  const double second = 1.0 - std::pow(at.beta2, at.step);
  walk_pairs(exp_avg, exp_avg_sq, [&](const double* m, const double* v, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      const double momentum = m[i] / first;
      const double size = std::sqrt(v[i] / second);
      count(both.update, momentum / (size + at.eps));
      count(both.ratio, momentum / size);
    }
  });
  return both;
}

}  // namespace trainmon
