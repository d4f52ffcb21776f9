// What the examples of the C++ reference share.
#pragma once

#include <utility>
#include <vector>

#include "trainmon/record.h"

namespace trainmon::testing {

// A vector of float32 numbers as a tensor, which is borrowed.
class Floats {
 public:
  explicit Floats(std::vector<float> values)
      : values_(std::move(values)), size_(static_cast<std::int64_t>(values_.size())) {}
  TensorView view() const {
    TensorView view;
    view.data = values_.data();
    view.ndim = 1;
    view.sizes = &size_;
    return view;
  }

 private:
  std::vector<float> values_;
  std::int64_t size_;
};

// A table of one series.
class OneSeries final : public SeriesTable {
 public:
  explicit OneSeries(Series series) : series_(std::move(series)) {}
  const Series& at(SeriesId) const override { return series_; }
  std::size_t size() const override { return 1; }

 private:
  Series series_;
};

}  // namespace trainmon::testing
