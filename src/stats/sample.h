// The state of a CPU tensor, estimated from blocks at random places.
#pragma once

#include <cstdint>
#include <optional>

#include "trainmon/record.h"
#include "trainmon/stat.h"
#include "trainmon/tensor.h"

namespace trainmon {

// Elements in memory order fall into blocks of so many. A *stratum* is 2 n blocks in a row, of
// which two different ones are read: a sample of 1/n. Blocks that are left over at the end are a
// stratum too, and up to two of them are both read. What is no whole block is read as well.
inline constexpr std::int64_t kSampleBlock = 1024;

// What one sample is drawn by: no two rows of a run have the same.
struct SampleKey {
  int rank = 0;
  SeriesId series = 0;
  std::int64_t window = 0;
  std::int32_t accum = 0;
  std::int32_t call = 0;
};
// The seed that follows from it (docs/formats.md has the formula).
std::uint64_t sample_seed(const SampleKey& key);

// Two of `blocks` >= 2 blocks, by their numbers in the stratum, the smaller one first. Every pair
// is as likely as any other, within 2^-32 times the number of blocks.
struct DrawnBlocks {
  std::int64_t first = 0;
  std::int64_t second = 0;
};
DrawnBlocks drawn_blocks(std::uint64_t seed, std::int64_t stratum, std::int64_t blocks);

// An estimate of what measure() gives, and in `sample` its errors. It is unbiased in `sum`, in
// `sum_sq` and in the squares of both errors (Cochran, Sampling Techniques, 3rd edition, chapter
// 5). nullopt for a tensor of fewer than 4 n blocks, for one that is not dense, and for one that
// has elements that count twice. Elements that are not finite take no part in sums, as in
// measure(). Any type; the same for every instruction set. Allocates nothing. n is at least 2.
// Throws std::invalid_argument when the tensor is not on the CPU.
std::optional<RowState> measure_sample(const TensorView& tensor, int n, std::uint64_t seed,
                                       RowSample& sample, double eps = kDefaultEps);

}  // namespace trainmon
