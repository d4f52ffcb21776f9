// Recorded histograms of many tensors over steps, in bounded memory: when they become too many,
// neighbouring steps share a column, which holds their sum.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "model/histogram.h"
#include "report/cell_table.h"

namespace trainmon::page {

class HistogramTable {
 public:
  // So many bytes of a page: one for each bin of a column of a line.
  explicit HistogramTable(std::int64_t most_bytes) : most_(most_bytes) {}

  struct Line {
    Tensor tensor;
    int run = 0;
    int rank = 0;
    std::map<std::int64_t, Histogram> columns;  // by where they begin
  };

  // Lines that do not fit with few columns, and histograms of other bins than the first one, are
  // left out and counted.
  void add(const Tensor& tensor, int run, int rank, std::int64_t step, const Histogram& histogram);
  // Twice as many steps share a column. False where few are left.
  bool coarsen();

  std::size_t bins() const { return bins_; }
  std::int64_t left_out() const { return left_out_; }
  const std::vector<Line>& lines() const { return lines_; }
  const std::map<std::int64_t, Span>& columns() const { return columns_; }
  std::int64_t bytes() const;

 private:
  std::int64_t most_;
  std::int64_t width_ = 1;
  std::int64_t left_out_ = 0;
  std::size_t bins_ = 0;
  std::vector<Line> lines_;
  std::map<std::tuple<Tensor, int, int>, std::size_t> numbers_;
  std::map<std::int64_t, Span> columns_;
};

}  // namespace trainmon::page
