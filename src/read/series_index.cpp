// Equal text finds the candidates, operator== decides.
#include "read/series_index.h"

namespace trainmon {

std::uint32_t SeriesIndex::add(const Series& series) {
  std::string key = series.kind + '\0' + series.name + '\0' + series.element;
  for (auto [at, end] = by_name_.equal_range(key); at != end; ++at) {
    if (list_[at->second] == series) return at->second;
  }
  const auto number = static_cast<std::uint32_t>(list_.size());
  list_.push_back(series);
  by_name_.emplace(std::move(key), number);
  return number;
}

std::vector<Series> SeriesIndex::take() {
  by_name_.clear();
  return std::move(list_);
}

}  // namespace trainmon
