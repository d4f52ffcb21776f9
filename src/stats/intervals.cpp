// Few bounds: each is compared with all elements. Many: each element is searched for.
#include "stats/intervals.h"

#include <algorithm>
#include <bit>
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

DType taken_for(DType dtype) {
  switch (dtype) {
    case DType::bfloat16:
      return dtype;
    case DType::float32:
    case DType::float16:
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
      return DType::float32;
    default:
      return DType::float64;
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

template <class Number>
Number number_of(Number value) {
  return value;
}
template <class Number>
Number number_of(std::uint16_t bfloat16) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bfloat16) << 16);
}

// totals[i] += the elements for which i bounds are too small; all are for a NaN.
template <class Element, class Number>
std::int64_t search(const void* values, std::int64_t n, const std::vector<Number>& bounds,
                    std::int64_t* totals) {
  const auto* from = static_cast<const std::byte*>(values);
  std::int64_t zeros = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    Element element;
    std::memcpy(&element, from + i * std::int64_t{sizeof(Element)}, sizeof element);
    const auto x = number_of<Number>(element);
    const Number* first = bounds.data();
    std::size_t size = bounds.size();
    while (size > 1) {  // without a branch on the element
      const std::size_t half = size / 2;
      first += half * static_cast<std::size_t>(!(x <= first[half - 1]));
      size -= half;
    }
    ++totals[first - bounds.data() + (x <= *first ? 0 : 1)];
    zeros += x == Number{0};
  }
  return zeros;
}

}  // namespace

Intervals::Intervals(std::span<const double> bounds, DType dtype) : taken_(taken_for(dtype)) {
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const bool first = i == 0;
    if (first ? bounds[i] == bounds[i] : bounds[i] > bounds[i - 1]) continue;
    throw std::invalid_argument("bounds must be numbers that ascend strictly: bounds[" +
                                std::to_string(i) + "] is " + number_text(bounds[i]) +
                                (first ? "" : ", after " + number_text(bounds[i - 1])));
  }
  if (taken_ == DType::float64) {
    doubles_ = rounded<double>(bounds);
  } else {
    floats_ = rounded<float>(bounds);
  }
}

std::int64_t Intervals::count(const void* values, std::int64_t n, std::int64_t* totals) const {
  const cpu::ProbeKernels& kernels = cpu::probe_kernels();
  if (taken_ == DType::float64) {
    const auto size = static_cast<std::int64_t>(doubles_.size());
    if (doubles_.size() > kMostCompared) return search<double>(values, n, doubles_, totals);
    return kernels.count_float64(values, n, doubles_.data(), size, totals);
  }
  const bool brain = taken_ == DType::bfloat16;
  if (floats_.size() > kMostCompared) {
    return brain ? search<std::uint16_t>(values, n, floats_, totals)
                 : search<float>(values, n, floats_, totals);
  }
  const auto count = brain ? kernels.count_bfloat16 : kernels.count_float32;
  return count(values, n, floats_.data(), static_cast<std::int64_t>(floats_.size()), totals);
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
