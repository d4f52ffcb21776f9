// Where the batches of a segment stand, in some 15 bytes each: a log of many steps has many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "read/segment_index.h"

namespace trainmon {

class BatchPlaces {
 public:
  BatchPlaces() = default;
  // All but BatchPlace::batch.
  explicit BatchPlaces(std::span<const BatchPlace> places);

  std::size_t size() const { return size_; }
  // Calls use(number, place) for those from `first` to `end`, until it says false.
  template <typename Use>
  void for_each(std::size_t first, std::size_t end, const Use& use) const {
    std::vector<BatchPlace> places;
    for (std::size_t block = first / kBlock; block * kBlock < end; ++block) {
      unpack(block, places);
      for (std::size_t i = 0; i < places.size(); ++i) {
        const std::size_t number = block * kBlock + i;
        if (number >= first && number < end && !use(number, places[i])) return;
      }
    }
  }

 private:
  static constexpr std::size_t kBlock = 16;  // each is read by itself
  void unpack(std::size_t block, std::vector<BatchPlace>& places) const;

  std::size_t size_ = 0;
  std::string bytes_;
  std::vector<std::uint32_t> begins_;  // of blocks in bytes_
  std::vector<std::uint64_t> series_;  // different BatchFacts::series
};

}  // namespace trainmon
