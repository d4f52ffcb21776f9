// All lines have the same columns, so that a page needs to name their steps once.
#include "report/histogram_table.h"

#include <algorithm>
#include <limits>

namespace trainmon::page {
namespace {

constexpr std::size_t kFewestHistograms = 32;

// Whatever a file says, a sum does not overflow.
void add(std::int64_t& sum, std::int64_t count) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  sum = std::max<std::int64_t>(sum, 0);
  sum = count > kMost - sum ? kMost : sum + std::max<std::int64_t>(count, 0);
}

void add_to(Histogram& sum, const Histogram& one) {
  add(sum.below, one.below);
  add(sum.above, one.above);
  add(sum.nans, one.nans);
  for (std::size_t i = 0; i < sum.bins.size(); ++i) add(sum.bins[i], one.bins[i]);
}

}  // namespace

std::int64_t HistogramTable::bytes() const {
  return static_cast<std::int64_t>(lines_.size() * columns_.size() * (bins_ + 3));
}

void HistogramTable::add(const Tensor& tensor, int run, int rank, std::int64_t step,
                         const Histogram& histogram) {
  if (bins_ == 0) bins_ = histogram.bins.size();
  auto known = numbers_.find({tensor, run, rank});
  const auto smallest =
      static_cast<std::int64_t>((lines_.size() + 1) * kFewestHistograms * (bins_ + 3));
  if (histogram.bins.size() != bins_ || (known == numbers_.end() && smallest > most_)) {
    ++left_out_;
    return;
  }
  if (known == numbers_.end()) {
    known = numbers_.emplace(std::tuple(tensor, run, rank), lines_.size()).first;
    lines_.push_back({tensor, run, rank, {}});
  }
  const std::int64_t begin = column_begin(step, width_);
  const auto [column, is_new] = columns_.try_emplace(begin, Span{step, step});
  column->second.first = std::min(column->second.first, step);
  column->second.last = std::max(column->second.last, step);
  auto& columns = lines_[known->second].columns;
  const auto [cell, is_first] = columns.try_emplace(begin, histogram);
  if (!is_first && cell->second.low == histogram.low && cell->second.high == histogram.high) {
    add_to(cell->second, histogram);
  }
  while (bytes() > most_ && coarsen()) {
  }
}

bool HistogramTable::coarsen() {
  const std::size_t before = columns_.size();
  if (before <= kFewestHistograms) return false;
  while (columns_.size() == before && width_ < (std::int64_t{1} << 48)) {
    width_ *= 2;
    std::map<std::int64_t, Span> wider;
    for (const auto& [begin, span] : columns_) {
      const auto [at, is_new] = wider.try_emplace(column_begin(begin, width_), span);
      at->second.last = std::max(at->second.last, span.last);
    }
    columns_ = std::move(wider);
    for (Line& line : lines_) {
      std::map<std::int64_t, Histogram> sums;
      for (auto& [begin, histogram] : line.columns) {
        const auto [at, is_new] = sums.try_emplace(column_begin(begin, width_), histogram);
        if (!is_new) add_to(at->second, histogram);
      }
      line.columns = std::move(sums);
    }
  }
  return columns_.size() < before;
}

}  // namespace trainmon::page
