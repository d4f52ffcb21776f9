// The windows that rows of a log are of.
#pragma once

#include <cstdint>
#include <map>

#include "base/number_set.h"

namespace trainmon {

class WindowSet {
 public:
  void insert(std::int32_t optimizer, std::int64_t window) { windows_[optimizer].insert(window); }
  void insert(const WindowSet& others) {
    for (const auto& [optimizer, windows] : others.windows_) windows_[optimizer].insert(windows);
  }
  bool contains(std::int32_t optimizer, std::int64_t window) const {
    const auto found = windows_.find(optimizer);
    return found != windows_.end() && found->second.contains(window);
  }
  // The greatest of an optimizer; -1: none.
  std::int64_t last(std::int32_t optimizer) const {
    const auto found = windows_.find(optimizer);
    return found == windows_.end() ? -1 : found->second.last();
  }
  std::uint64_t size() const {
    std::uint64_t size = 0;
    for (const auto& [optimizer, windows] : windows_) size += windows.size();
    return size;
  }
  // Calls use(optimizer, window) for each, ascending.
  template <typename Use>
  void for_each(const Use& use) const {
    for (const auto& [optimizer, windows] : windows_) {
      windows.for_each([&](std::int64_t window) { use(optimizer, window); });
    }
  }
  bool operator==(const WindowSet&) const = default;

 private:
  std::map<std::int32_t, NumberSet> windows_;  // by optimizer; none is empty
};

}  // namespace trainmon
