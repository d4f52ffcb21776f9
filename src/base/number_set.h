// A set of whole numbers that mostly follow one another: kept as ranges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace trainmon {

class NumberSet {
 public:
  void insert(std::int64_t number) { insert(number, number); }
  // All from `first` to `last`, both among them; first <= last.
  void insert(std::int64_t first, std::int64_t last) {
    auto next = ranges_.upper_bound(first);
    if (next != ranges_.begin()) {
      const auto before = std::prev(next);
      if (before->second >= last) return;
      if (before->second >= first || before->second + 1 == first) {
        first = before->first;
        next = before;
      }
    }
    while (next != ranges_.end() && (next->first <= last || next->first - 1 == last)) {
      last = std::max(last, next->second);
      next = ranges_.erase(next);
    }
    ranges_.emplace_hint(next, first, last);
  }
  void insert(const NumberSet& others) {
    for (const auto& [first, last] : others.ranges_) insert(first, last);
  }

  bool contains(std::int64_t number) const {
    const auto after = ranges_.upper_bound(number);
    return after != ranges_.begin() && std::prev(after)->second >= number;
  }
  // The least that is not below `number`; nullopt where there is none.
  std::optional<std::int64_t> from(std::int64_t number) const {
    if (contains(number)) return number;
    const auto after = ranges_.upper_bound(number);
    return after == ranges_.end() ? std::nullopt : std::optional(after->first);
  }
  bool empty() const { return ranges_.empty(); }
  // The greatest; not of an empty set.
  std::int64_t last() const { return ranges_.rbegin()->second; }
  std::uint64_t size() const {
    std::uint64_t size = 0;
    for (const auto& [first, last] : ranges_) {
      size += static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first) + 1;
    }
    return size;
  }
  // Calls use(number) for each, ascending.
  template <typename Use>
  void for_each(const Use& use) const {
    for (const auto& [first, last] : ranges_) {
      for (std::int64_t number = first;; ++number) {
        use(number);
        if (number == last) break;
      }
    }
  }
  bool operator==(const NumberSet&) const = default;

 private:
  std::map<std::int64_t, std::int64_t> ranges_;  // first -> last; none touches another
};

}  // namespace trainmon
