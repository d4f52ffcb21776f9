// Which batches of a rank have come: batches whose values a device still computes are passed over.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>

namespace trainmon {

// Numbers begin with 1 and may come in any order. One thread.
class BatchNumbers {
 public:
  void note(std::uint64_t number) {
    missing_.erase(number);
    for (; next_ < number && missing_.size() < kMostMissing; ++next_) missing_.insert(next_);
    next_ = std::max(next_, number + 1);
  }
  // Whether none is missing up to this one, of those that are remembered.
  bool are_complete_to(std::uint64_t number) const {
    return missing_.empty() || *missing_.begin() > number;
  }

 private:
  static constexpr std::size_t kMostMissing = 256;
  std::uint64_t next_ = 1;
  std::set<std::uint64_t> missing_;
};

}  // namespace trainmon
