// What the host hands to the kernel and what it gets back: plain data, the same on both sides.
#pragma once

#include <cstdint>

#include "model/both.h"
#include "trainmon/stat.h"

namespace trainmon::cuda {

inline constexpr int kThreads = 256;                 // of a block, 8 warps
inline constexpr std::int64_t kChunkBytes = 131072;  // the leaf of every sum on a device
inline constexpr int kGroup = 32;                    // partial states merged at a time
inline constexpr int kInline = 4;   // tensors that fit into the kernel's parameters
inline constexpr int kStrides = 8;  // dimensions of a layout with gaps
inline constexpr int kCoarse = 32;  // chunks between two entries of the coarse index

// Bytes per element; dtype_size() for both sides.
TRAINMON_BOTH std::int64_t item_bytes(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
    case DType::uint64:
      return 8;
    case DType::float32:
    case DType::int32:
    case DType::uint32:
      return 4;
    case DType::float16:
    case DType::bfloat16:
    case DType::int16:
    case DType::uint16:
      return 2;
    default:
      return 1;
  }
}

// One tensor. Chunks are numbered through all tensors of the launch, partial states through those
// with more than one chunk.
struct Entry {
  const void* data;
  std::int64_t elements;      // > 0
  std::int64_t multiplicity;  // how often each counts (expanded dimensions)
  std::uint32_t first_chunk;
  std::uint32_t first_partial;  // chunks, then groups of kGroup chunks, groups of those, ...
  std::uint32_t first_counter;  // one per group
  std::uint32_t row;            // whose result this is
  std::int32_t strides;         // index of its Gaps, -1 for one run of memory
  std::uint16_t window;         // which of the windows it belongs to
  DType dtype;
};

// A layout with gaps between the elements, innermost dimension first.
struct Gaps {
  std::int32_t ndim;
  std::int64_t sizes[kStrides];
  std::int64_t strides[kStrides];  // elements
};

// A result in mapped host memory. It is there when `stamp` has the awaited number.
struct Result {
  RowState state;
  std::uint64_t stamp;
  std::uint32_t launch;  // of a launch in a captured graph: which one,
  std::uint32_t row;     // which of its rows
  std::int64_t window;   // and in which window it ran
};

// The results of captured launches, which run any number of times: a ring that the device fills.
struct ReplayRing {
  Result* results;  // mapped host memory
  std::uint64_t capacity;
  unsigned long long* head;              // device memory: how many were begun
  const volatile std::uint64_t* tail;    // mapped: how many the host has taken
  unsigned long long* dropped;           // device memory: found no room
  volatile std::uint64_t* dropped_seen;  // mapped copy of it
};

// Parameters of one launch. `results[entry.row]` gets the state and then `serial` as its stamp; of
// a captured launch (`launch` != 0) the ring gets it.
struct Work {
  const Entry* entries;              // nullptr: `inlined`
  const std::uint32_t* first_chunk;  // of every tensor, as in its entry
  const std::uint32_t* coarse;       // the tensor of every kCoarse-th chunk
  const Gaps* gaps;
  RowState* partials;
  unsigned int* counters;  // zero before and after, as these two:
  unsigned int* drawn;     // chunks handed out beyond the first of each block
  unsigned int* left;      // blocks that are done
  Result* results;
  const std::int32_t* window;  // the open ones, by optimizer; for captured launches
  double eps;
  std::uint64_t serial;
  std::uint32_t launch;
  std::uint32_t tensors;
  std::uint32_t chunks;
  ReplayRing ring;
  Entry inlined[kInline];
};
static_assert(sizeof(Work) <= 4096);

// What the step checks take of a tensor, as row_check() (stats/check.h) records it: its fingerprint
// and the eight sums of its sketch. Not initialised, for it lies in shared memory, too.
inline constexpr int kSketchSums = 8;
struct CheckSums {
  std::uint64_t fingerprint;
  double sketch[kSketchSums];
};

// What is taken of the tensor of an entry. Fingerprint and sketch follow the order of the elements.
// So where memory has another one, an entry of its own has the layout in C order, with expanded
// elements.
enum class Taken : std::uint8_t { state, both, check };
struct CheckEntry {
  std::int64_t first;  // the index of its first element in the full tensor
  Taken taken;
};

// The parameters of a launch with checks, which is in no captured graph. Results and partial sums
// have the places that states have.
struct CheckedWork : Work {
  const CheckEntry* checks;  // as `entries`
  CheckSums* check_partials;
  CheckSums* check_results;  // mapped; they are there before the stamp of the state
  CheckEntry inlined_checks[kInline];
};
static_assert(sizeof(CheckedWork) <= 4096);

}  // namespace trainmon::cuda
