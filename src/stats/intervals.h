// How many elements lie in which interval: bounds in the type they are compared in, and counting.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainmon/tensor.h"

namespace trainmon {

class Intervals {
 public:
  // Throws std::invalid_argument where `bounds` do not ascend strictly.
  Intervals(std::span<const double> bounds, DType dtype);

  // What count() takes: bfloat16 as it is, other types of at most 32 bits as float32, the rest as
  // float64.
  DType taken() const { return taken_; }
  // Adds n values, 1 <= n <= kBlock, to bounds.size() + 1 totals that start at 0; any order of
  // calls gives the same. Returns how many values are 0. The caller keeps subnormal numbers
  // (FloatMode).
  std::int64_t count(const void* values, std::int64_t n, std::int64_t* totals) const;
  // The counts of the intervals, from the totals of `elements` elements.
  std::vector<std::int64_t> finish(std::span<const std::int64_t> totals,
                                   std::int64_t elements) const;

 private:
  DType taken_;
  std::vector<float> floats_;
  std::vector<double> doubles_;
};

}  // namespace trainmon
