// Few bounds: each is compared with all elements. Many: each element is searched for.
#include "stats/intervals.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/text.h"
#include "stats/cpu/probe_kernels.h"

namespace trainmon {
namespace {

// More bounds than this are searched.
constexpr std::size_t kMostCompared = 64;

bool compared_as_float32(DType dtype) {
  switch (dtype) {
    case DType::float32:
    case DType::float16:
    case DType::bfloat16:
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
      return true;
    default:
      return false;
  }
}

// A bound beyond the largest number holds every number and not the infinity, which is in the last
// interval.
template <class Number>
std::vector<Number> rounded(std::span<const double> bounds) {
  std::vector<Number> out;
  for (const double bound : bounds) {
    out.push_back(std::min(static_cast<Number>(bound), std::numeric_limits<Number>::max()));
  }
  return out;
}

// totals[i] += the elements for which i bounds are too small; all are for a NaN.
template <class Number>
std::int64_t search(const void* values, std::int64_t n, std::span<const Number> bounds,
                    std::int64_t* totals) {
  const auto* from = static_cast<const std::byte*>(values);
  std::int64_t zeros = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    Number x;
    std::memcpy(&x, from + i * std::int64_t{sizeof(Number)}, sizeof x);
    const Number* first = bounds.data();
    std::size_t size = bounds.size();
    while (size > 1) {  // without a branch on the element
      const std::size_t half = size / 2;
      first += x <= first[half - 1] ? 0 : half;
      size -= half;
    }
    ++totals[first - bounds.data() + (x <= *first ? 0 : 1)];
    zeros += x == Number{0};
  }
  return zeros;
}

}  // namespace

Intervals::Intervals(std::span<const double> bounds, DType dtype)
    : float32_(compared_as_float32(dtype)) {
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const bool first = i == 0;
    if (first ? bounds[i] == bounds[i] : bounds[i] > bounds[i - 1]) continue;
    throw std::invalid_argument("bounds must be numbers that ascend strictly: bounds[" +
                                std::to_string(i) + "] is " + number_text(bounds[i]) +
                                (first ? "" : ", after " + number_text(bounds[i - 1])));
  }
  if (float32_) {
    floats_ = rounded<float>(bounds);
  } else {
    doubles_ = rounded<double>(bounds);
  }
}

std::int64_t Intervals::count(const void* values, std::int64_t n, std::int64_t* totals) const {
  const std::size_t bounds = float32_ ? floats_.size() : doubles_.size();
  if (bounds > kMostCompared) {
    return float32_ ? search<float>(values, n, floats_, totals)
                    : search<double>(values, n, doubles_, totals);
  }
  const cpu::ProbeKernels& kernels = cpu::probe_kernels();
  const auto size = static_cast<std::int64_t>(bounds);
  return float32_ ? kernels.count_float32(values, n, floats_.data(), size, totals)
                  : kernels.count_float64(values, n, doubles_.data(), size, totals);
}

std::vector<std::int64_t> Intervals::finish(std::span<const std::int64_t> totals,
                                            std::int64_t elements) const {
  std::vector<std::int64_t> counts(totals.begin(), totals.end());
  if (counts.size() - 1 > kMostCompared) return counts;
  // Compared one by one, the totals are of the elements at most at a bound.
  counts.back() = elements;
  for (std::size_t i = counts.size() - 1; i > 0; --i) counts[i] -= counts[i - 1];
  return counts;
}

}  // namespace trainmon
