// Which rows were there already, told by restart, rank and seq: a bit per row.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

namespace trainmon {

class SeenRows {
 public:
  // False when the row was there before. Rows merged over ranks (-1) and those of sources without
  // an order of execution (seq 0) cannot be told apart and are always new.
  bool add(std::int32_t restart, std::int32_t rank, std::uint64_t seq) {
    if (rank < 0 || seq == 0) return true;
    std::uint64_t& word = ranks_[{restart, rank}][seq / kPage][seq % kPage / 64];
    const std::uint64_t bit = std::uint64_t{1} << (seq % 64);
    const bool is_new = (word & bit) == 0;
    word |= bit;
    return is_new;
  }

 private:
  static constexpr std::uint64_t kPage = 4096;
  using Pages = std::unordered_map<std::uint64_t, std::array<std::uint64_t, kPage / 64>>;
  std::map<std::pair<std::int32_t, std::int32_t>, Pages> ranks_;
};

}  // namespace trainmon
