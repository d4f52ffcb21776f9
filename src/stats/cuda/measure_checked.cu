// The kernel with fingerprint and sketch: the same walk, with more in its turns.
#include "stats/cuda/check_sums.h"
#include "stats/cuda/kernel.h"

namespace trainmon::cuda {
namespace {

struct CheckedBlock : Block {
  CheckFactors factors;
  BlockFactors blocks[3];  // as the ranges
  CheckSums check_sums[kWarps];
  CheckSums check;  // of the chunk, by the first warp
};

// How the check of a chunk is taken.
enum class Way : unsigned char { none, with_state, one_by_one };
struct ChunkCheck {
  std::int64_t first;  // the index of the first element of the tensor in the full one
  Way way;
  bool is_alone;
};

__device__ void begin_checks(CheckedBlock& block) {
  fill_factors(block.factors, static_cast<int>(threadIdx.x));
}

__device__ const CheckEntry& check_entry(const CheckedWork& work, std::uint32_t tensor) {
  return work.checks == nullptr ? work.inlined_checks[tensor] : work.checks[tensor];
}

// By one warp, after find_range() of the same.
__device__ void find_factors(const CheckedWork& work, CheckedBlock& block, unsigned turn) {
  __syncwarp();
  const Range* range = block.range(turn);
  const unsigned lane = threadIdx.x % 32;
  const std::int64_t begin = check_entry(work, range->tensor).first + range->chunk.begin;
  const auto at = static_cast<std::uint64_t>(begin * item_bytes(range->chunk.dtype));
  if (lane < kChunkBlocks) {
    block.blocks[turn % 3].of[lane] = block_factor(at, static_cast<int>(lane));
  }
}

__device__ ChunkCheck check_of(const CheckedWork& work, const Range& range, bool is_plain) {
  const CheckEntry& entry = check_entry(work, range.tensor);
  ChunkCheck check{entry.first, Way::none, entry.taken == Taken::check};
  if (entry.taken == Taken::state) return check;
  const std::int64_t at = entry.first * item_bytes(range.chunk.dtype);
  check.way = is_plain && at % 16 == 0 ? Way::with_state : Way::one_by_one;
  return check;
}

__device__ CheckSums sum_of_lanes(CheckSums mine) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const CheckSums other = from_lane(mine, distance);
    add(mine, other);
  }
  return mine;
}
__device__ void leave_check_of_warp(const CheckSums& mine, CheckedBlock& block) {
  const CheckSums sum = sum_of_lanes(mine);
  if (threadIdx.x % 32 == 0) block.check_sums[threadIdx.x / 32] = sum;
}
__device__ CheckSums check_of_warps(const CheckedBlock& block) {
  CheckSums total = block.check_sums[threadIdx.x % kWarps];
  for (int distance = kWarps / 2; distance > 0; distance /= 2) {
    const CheckSums other = from_lane(total, distance);
    add(total, other);
  }
  return total;
}

// The state and the check of a run of memory.
template <class Format>
struct WithCheck {
  Accumulator<Format> state;
  CheckAccumulator<Format> check;
  __device__ void vector(const std::uint32_t* word) {
    state.vector(word);
    check.vector(word);
  }
  // Of the last elements conclude_check() takes the check.
  __device__ void one(typename Format::Real x) { state.one(x); }
};

// Of a chunk whose check is taken otherwise, the check that is left here means nothing. A second
// loop for each format would double the kernel.
template <class Format>
__device__ void run(const Chunk& chunk, const ChunkCheck& check, double eps, unsigned turn,
                    CheckedBlock& block) {
  constexpr int kItemBytes = 16 / Format::kPerVector;
  const auto at = static_cast<std::uint64_t>((check.first + chunk.begin) * kItemBytes);
  WithCheck<Format> out{Accumulator<Format>(eps),
                        CheckAccumulator<Format>(block.factors, block.blocks[turn % 3], at,
                                                 at + std::uint64_t{threadIdx.x} * 16)};
  each_of_run<Format>(chunk, out, block);
  leave_sum_of_warp(out.state.sums(), block);
  leave_check_of_warp(out.check.sums(), block);
}

// By the first warp: what the warps have left, and the elements behind the last whole vector.
__device__ __noinline__ void conclude_check(const ChunkCheck& check, const Chunk& chunk,
                                            CheckedBlock& block) {
  if (check.way != Way::with_state) return;
  CheckSums total = check_of_warps(block);
  const std::int64_t per_vector = 16 / item_bytes(chunk.dtype);
  const std::int64_t taken = chunk.n / per_vector * per_vector;
  if (taken < chunk.n) {
    const int lane = static_cast<int>(threadIdx.x);
    add(total, sum_of_lanes(check_elements(chunk, block.factors, check.first, taken, lane)));
  }
  if (threadIdx.x == 0) block.check = total;
}

// Any other chunk, element by element.
__device__ __noinline__ void check_again(const ChunkCheck& check, const Chunk& chunk,
                                         CheckedBlock& block) {
  if (check.way != Way::one_by_one) return;
  const int thread = static_cast<int>(threadIdx.x);
  leave_check_of_warp(check_elements(chunk, block.factors, check.first, 0, thread), block);
  __syncthreads();
  if (thread < 32) {
    const CheckSums total = check_of_warps(block);
    if (thread == 0) block.check = total;
  }
  __syncthreads();  // the others go on, and leave sums there again
}

// By the first warp, before store_and_count() of the state that belongs there.
__device__ void store_check(const CheckedWork& work, const RowState* partial,
                            const CheckedBlock& block) {
  constexpr unsigned kWords = sizeof(CheckSums) / 8;
  CheckSums* to = work.check_partials + (partial - work.partials);
  __syncwarp();
  if (threadIdx.x < kWords) {
    __stcg(reinterpret_cast<unsigned long long*>(to) + threadIdx.x,
           reinterpret_cast<const unsigned long long*>(&block.check)[threadIdx.x]);
  }
}

// By the first warp: the checks of the members of a group, the first of which has this state.
__device__ __noinline__ void merge_checks(const CheckedWork& work, const RowState* first,
                                          std::uint32_t members, CheckedBlock& block) {
  constexpr int kWords = static_cast<int>(sizeof(CheckSums) / 8);
  const CheckSums* partials = work.check_partials + (first - work.partials);
  const std::uint32_t lane = threadIdx.x % 32;
  CheckSums mine = {};
  if (lane < members) {
    unsigned long long word[kWords];
    for (int i = 0; i < kWords; ++i) {
      word[i] = __ldcg(reinterpret_cast<const unsigned long long*>(partials + lane) + i);
    }
    memcpy(&mine, word, sizeof mine);
  }
  mine = sum_of_lanes(mine);
  if (lane == 0) block.check = mine;
}

// By the first warp, before the state is written, whose stamp says that both are there.
__device__ void write_check(const CheckedWork& work, const Entry& entry,
                            const CheckedBlock& block) {
  constexpr unsigned kWords = sizeof(CheckSums) / 8;
  auto* to = reinterpret_cast<volatile std::uint64_t*>(work.check_results + entry.row);
  if (threadIdx.x < kWords) {
    to[threadIdx.x] = reinterpret_cast<const std::uint64_t*>(&block.check)[threadIdx.x];
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    trainmon_measure_checked(const __grid_constant__ CheckedWork work) {
  __shared__ CheckedBlock block;
  measure_all(work, block);
}

}  // namespace trainmon::cuda
