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

  // Whether count() takes float32 (else float64).
  bool float32() const { return float32_; }
  // Of bounds.size() + 1 totals that start at 0; any order of calls gives the same. Returns how
  // many elements are 0.
  std::int64_t count(const void* values, std::int64_t n, std::int64_t* totals) const;
  // The counts of the intervals, from the totals of `elements` elements.
  std::vector<std::int64_t> finish(std::span<const std::int64_t> totals,
                                   std::int64_t elements) const;

 private:
  bool float32_;
  std::vector<float> floats_;
  std::vector<double> doubles_;
};

}  // namespace trainmon
