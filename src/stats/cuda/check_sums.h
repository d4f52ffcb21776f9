// Fingerprint and sketch (stats/check.h) as the kernel takes them: the same on the host, where
// tests run it.
//
// A thread has the vectors, or the elements, that it has for the state. So what an element counts
// hardly changes from one of them to the next. The sums of the threads are added in a fixed tree.
#pragma once

#include <cstdint>

#include "model/both.h"
#include "stats/check_keys.h"
#include "stats/cuda/careful.h"
#include "stats/cuda/element.h"
#include "stats/cuda/work.h"

namespace trainmon::cuda {

TRAINMON_BOTH void add(CheckSums& into, const CheckSums& from) {
  into.fingerprint += from.fingerprint;
  for (int i = 0; i < kSketchSums; ++i) into.sketch[i] += from.sketch[i];
}

// Factors of the fingerprint, where a block of threads can read them.
struct CheckFactors {
  alignas(16) std::int32_t column[kFingerprintGroups * kFingerprintColumns];
  std::uint32_t row[kFingerprintRows];  // the upper half of a word's above that of the lower
};
static_assert(kFingerprintGroups * kFingerprintColumns == kThreads);

struct RowFactors {
  std::uint32_t of[kFingerprintRows];
};
constexpr RowFactors row_factors() {
  RowFactors all = {};
  for (int i = 0; i < kFingerprintRows; ++i) {
    all.of[i] = static_cast<std::uint32_t>(kFingerprintUpper[i]) << 16 |
                static_cast<std::uint32_t>(kFingerprintLower[i]);
  }
  return all;
}
// What each thread of a block fills in.
TRAINMON_BOTH void fill_factors(CheckFactors& factors, int thread) {
  constexpr RowFactors kRows = row_factors();
  factors.column[thread] = fingerprint_column_factor(thread);
  if (thread < kFingerprintRows) factors.row[thread] = kRows.of[thread];
}

// The factors of the blocks that a chunk is in: it begins anywhere in the first of them.
inline constexpr std::uint64_t kBlockBytes = 4 * kFingerprintBlock;
inline constexpr int kChunkBlocks = static_cast<int>(kChunkBytes / kBlockBytes) + 1;
struct BlockFactors {
  std::uint64_t of[kChunkBlocks];
};
TRAINMON_BOTH std::uint64_t block_factor(std::uint64_t byte, int i) {
  return fingerprint_block_factor(byte / kBlockBytes + static_cast<std::uint64_t>(i));
}

// Whether an element of this index is subtracted in the sketch.
TRAINMON_BOTH std::uint32_t is_minus(std::uint64_t index) {
  const std::uint64_t block = index / kSketchBlock;
  const std::uint64_t pairs = block & block >> 1;
#if defined(__CUDA_ARCH__)
  const auto of_block = static_cast<std::uint32_t>(__popcll(static_cast<long long>(pairs)));
#else
  const auto of_block = static_cast<std::uint32_t>(__builtin_popcountll(pairs));
#endif
  return (of_block ^ kSketchMinus >> (index / kSketchStep % 8)) & 1u;
}
// The sixteen lanes of the sketch are recorded as eight sums: of the odd ones, the second half is
// subtracted.
TRAINMON_BOTH bool is_turned(std::uint64_t index) {
  return index % 16 >= 8 && index % 2 == 1;
}

// What a word counts before the factor of its column.
TRAINMON_BOTH std::int64_t weighted(std::uint32_t word, std::uint32_t rows) {
  const auto lower = static_cast<std::int32_t>(static_cast<std::int16_t>(word & 0xffffu));
  const auto upper = static_cast<std::int32_t>(static_cast<std::int16_t>(word >> 16));
  return lower * static_cast<std::int32_t>(rows & 0xffffu) +
         upper * static_cast<std::int32_t>(rows >> 16);
}

// Takes the vectors of one thread, in order.
template <class Format>
class CheckAccumulator {
 public:
  // `byte` is the place in the full tensor of this thread's first vector, a multiple of 16, and
  // `chunk` that of the chunk.
  TRAINMON_BOTH CheckAccumulator(const CheckFactors& factors, const BlockFactors& blocks,
                                 std::uint64_t chunk, std::uint64_t byte)
      : factors_(factors),
        blocks_(blocks),
        first_block_(chunk / kBlockBytes),
        vector_(byte / 16),
        rows_(factors.row[vector_ / 4 % kFingerprintRows]) {}
  TRAINMON_BOTH void vector(const std::uint32_t* word) {
    const std::uint64_t group = vector_ / (kFingerprintGroup / 4) % kFingerprintGroups;
    const std::int32_t* column = factors_.column + group * kFingerprintColumns + vector_ % 4 * 4;
    std::int64_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += weighted(word[i], rows_) * column[i];
    const std::uint64_t block = vector_ / (kFingerprintBlock / 4) - first_block_;
    fingerprint_ += static_cast<std::uint64_t>(sum) * blocks_.of[block];

    typename Format::Real x[Format::kPerVector];
    Format::decode(word, x);
    const double sign = is_minus(vector_ * Format::kPerVector) != 0 ? -1.0 : 1.0;
    for (int i = 0; i < Format::kPerVector; ++i) {
      const bool turned = Format::kPerVector == 16 && is_turned(static_cast<std::uint64_t>(i));
      double& lane = lanes_[i % kLanes];
      lane = fma(turned ? -sign : sign, static_cast<double>(x[i]), lane);
    }
    vector_ += kThreads;
  }
  TRAINMON_BOTH CheckSums sums() const {
    const std::uint64_t first = vector_ * Format::kPerVector;
    CheckSums out;
    out.fingerprint = fingerprint_;
    for (int i = 0; i < kSketchSums; ++i) {
      const bool has = first % kSketchSums / kLanes == static_cast<std::uint64_t>(i / kLanes);
      const bool turned = Format::kPerVector < 16 && first % 16 >= 8 && i % 2 == 1;
      const double lane = has ? lanes_[i % kLanes] : 0.0;
      out.sketch[i] = turned ? -lane : lane;
    }
    return out;
  }

 private:
  static constexpr int kLanes = Format::kPerVector < kSketchSums ? Format::kPerVector : kSketchSums;
  const CheckFactors& factors_;
  const BlockFactors& blocks_;
  std::uint64_t first_block_;
  std::uint64_t vector_;
  std::uint32_t rows_;
  std::uint64_t fingerprint_ = 0;
  double lanes_[kLanes] = {};
};

// What the word of the bytes of an element counts; `at` is the place of its first byte.
TRAINMON_BOTH std::uint64_t counted(const CheckFactors& factors, std::uint32_t word,
                                    std::uint64_t at) {
  const std::uint64_t index = at / 4;
  const std::uint64_t group = index / kFingerprintGroup % kFingerprintGroups;
  const std::uint32_t rows = factors.row[index / kFingerprintColumns % kFingerprintRows];
  const std::int64_t column =
      factors.column[group * kFingerprintColumns + index % kFingerprintColumns];
  return static_cast<std::uint64_t>(weighted(word, rows) * column) * block_factor(at, 0);
}
TRAINMON_BOTH std::uint64_t fingerprint_of(const CheckFactors& factors, const void* p,
                                           std::int64_t item, std::uint64_t at) {
  switch (item) {
    case 1:
      return counted(
          factors, static_cast<std::uint32_t>(*static_cast<const std::uint8_t*>(p)) << (at % 4 * 8),
          at);
    case 2:
      return counted(
          factors,
          static_cast<std::uint32_t>(*static_cast<const std::uint16_t*>(p)) << (at % 4 * 8), at);
    case 4:
      return counted(factors, *static_cast<const std::uint32_t*>(p), at);
    default: {
      const std::uint64_t bits = *static_cast<const std::uint64_t*>(p);
      return counted(factors, static_cast<std::uint32_t>(bits), at) +
             counted(factors, static_cast<std::uint32_t>(bits >> 32), at + 4);
    }
  }
}

// Of the elements of a chunk from `begin` on that are this thread's, one by one: any type and
// layout. `first` is the index in the full tensor of the first element of the tensor.
TRAINMON_BOTH CheckSums check_elements(const Chunk& chunk, const CheckFactors& factors,
                                       std::int64_t first, std::int64_t begin, int thread) {
  const std::int64_t item = item_bytes(chunk.dtype);
  const auto start = static_cast<std::uint64_t>(first + chunk.begin);
  CheckSums out = {};
  double sum = 0.0;
  for (std::int64_t i = begin + thread; i < chunk.n; i += kThreads) {
    const void* p = chunk.at(i);
    const std::uint64_t index = start + static_cast<std::uint64_t>(i);
    out.fingerprint += fingerprint_of(factors, p, item, index * static_cast<std::uint64_t>(item));
    const double x = element(chunk.dtype, p, 0.0).value;
    sum += is_minus(index) != (is_turned(index) ? 1u : 0u) ? -x : x;
  }
  const std::uint64_t lane = (start + static_cast<std::uint64_t>(begin + thread)) % kSketchSums;
  for (int i = 0; i < kSketchSums; ++i) {
    if (static_cast<std::uint64_t>(i) == lane) out.sketch[i] = sum;
  }
  return out;
}

}  // namespace trainmon::cuda
