#include "detect/rank_ranges.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/text.h"

namespace trainmon::detect {
namespace {

std::string range_text(double least, double largest) {
  return number_text(least, 3) + " to " + number_text(largest, 3);
}

}  // namespace

void RankRanges::add(std::int32_t rank, double value) {
  Range& range = ranks_.try_emplace(rank, Range{value, value}).first->second;
  range.least = std::min(range.least, value);
  range.largest = std::max(range.largest, value);
}

std::vector<std::int32_t> RankRanges::apart(double factor) const {
  std::vector<std::pair<Range, std::int32_t>> sorted;
  for (const auto& [rank, range] : ranks_) sorted.emplace_back(range, rank);
  std::ranges::sort(sorted, {}, [](const auto& one) { return one.first.least; });
  const auto is_below = [&](double one, double other) {
    return one < other && std::abs(one - other) >= (factor - 1.0) * std::abs(one);
  };
  std::vector<std::int32_t> found;
  double before = -std::numeric_limits<double>::infinity();  // the largest so far
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const Range& range = sorted[i].first;
    const bool is_last = i + 1 == sorted.size();
    const bool is_first = std::isinf(before);
    if ((is_first || is_below(before, range.least)) &&
        (is_last || is_below(range.largest, sorted[i + 1].first.least))) {
      found.push_back(sorted[i].second);
    }
    before = std::max(before, range.largest);
  }
  std::ranges::sort(found);
  return found;
}

std::string RankRanges::text(const std::vector<std::int32_t>& of) const {
  constexpr std::size_t kShown = 3;  // ranks
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, of.size()); ++i) {
    const Range& range = ranks_.at(of[i]);
    text += (i == 0 ? "" : ", ") + range_text(range.least, range.largest) + " on rank " +
            std::to_string(of[i]);
  }
  std::vector<Range> others;
  for (const auto& [rank, range] : ranks_) {
    if (!std::ranges::binary_search(of, rank)) others.push_back(range);
  }
  if (others.empty()) return text;
  return text + ", on others " +
         range_text(std::ranges::min_element(others, {}, &Range::least)->least,
                    std::ranges::max_element(others, {}, &Range::largest)->largest);
}

}  // namespace trainmon::detect
