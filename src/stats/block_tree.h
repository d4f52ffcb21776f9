// The fixed tree of blocks, by which the state of a tensor is summed. It is the same for any
// number of threads, and for all that measure.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "stats/cpu/kernels.h"
#include "trainmon/stat.h"

namespace trainmon {

// Elements one thread takes at a time; a power of two, so that it is a subtree.
inline constexpr std::int64_t kChunk = std::int64_t{1} << 18;
static_assert(kChunk % cpu::kBlock == 0 && std::has_single_bit(static_cast<std::uint64_t>(kChunk)));

inline std::int64_t chunk_count(std::int64_t elements) {
  return (elements + kChunk - 1) / kChunk;
}

// Where a sum of n > 1 leaves divides: the largest power of two below n.
inline std::int64_t tree_split(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(n - 1)));
}

// The state of n > 0 elements from `begin`, a multiple of kBlock. leaf(begin, n) gives that of a
// block; it is called in ascending order.
template <class Leaf>
RowState sum_blocks(std::int64_t begin, std::int64_t n, Leaf&& leaf) {
  if (n <= cpu::kBlock) return leaf(begin, n);
  const std::int64_t left = tree_split((n + cpu::kBlock - 1) / cpu::kBlock) * cpu::kBlock;
  RowState state = sum_blocks(begin, left, leaf);
  merge(state, sum_blocks(begin + left, n - left, leaf));
  return state;
}

// The rest of the same tree, from the states of its chunks, at least one.
inline RowState sum_chunks(std::span<const RowState> chunks) {
  if (chunks.size() == 1) return chunks[0];
  const auto left = static_cast<std::size_t>(tree_split(static_cast<std::int64_t>(chunks.size())));
  RowState state = sum_chunks(chunks.first(left));
  merge(state, sum_chunks(chunks.subspan(left)));
  return state;
}

}  // namespace trainmon
