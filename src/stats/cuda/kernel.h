// The one kernel. A persistent grid walks the chunks of all tensors of a launch, whatever their
// number and types. It merges what belongs to one tensor in a fixed order. One file, for it is
// one kernel: its parts share the memory of a block and are compiled into one function.
//
// The kernel with checks (measure_checked.cu) has a block of its own, and functions for that where
// it does more. Each of the two is compiled by itself, so that the one does not change the other.
#pragma once

#include <cstddef>

#include "stats/cuda/careful.h"
#include "stats/cuda/sums.h"
#include "stats/cuda/work.h"

namespace trainmon::cuda {
namespace {

constexpr int kWarps = kThreads / 32;
constexpr int kDepth = 8;   // vectors of a thread under way
constexpr int kBlocks = 2;  // of a multiprocessor: with more, registers spill, which costs a tenth

// Where a block is.
struct Range {
  Chunk chunk;
  std::uint32_t tensor;
  std::uint32_t index;   // of the chunk in its tensor
  std::uint32_t chunks;  // of the tensor
};

// Memory of a block. Raw bytes, for shared memory has no constructors.
struct alignas(16) Block {
  uint4 stage[kDepth][kThreads];
  unsigned char states[sizeof(RowState)];  // of the first warp
  unsigned char sums[kWarps * 64];
  unsigned char ranges[3 * sizeof(Range)];  // the last one, this one and the next
  std::uint32_t at[3];                      // the chunk of each, of the whole launch
  unsigned needs;
  __device__ RowState* state() { return reinterpret_cast<RowState*>(states); }
  __device__ Range* range(unsigned i) { return reinterpret_cast<Range*>(ranges) + i % 3; }
  template <class T>
  __device__ T* sum(int i) {
    static_assert(sizeof(T) <= 64);
    return reinterpret_cast<T*>(sums + i * 64);
  }
};

// What is known of the check of a chunk: here, that there is none.
struct NoCheck {
  static constexpr bool is_alone = false;  // without a state
};
__device__ void begin_checks(const Block&) {}
__device__ void find_factors(const Work&, Block&, unsigned) {}
__device__ NoCheck check_of(const Work&, const Range&, bool) {
  return {};
}
__device__ void conclude_check(NoCheck, const Chunk&, Block&) {}
__device__ void check_again(NoCheck, const Chunk&, Block&) {}
__device__ void store_check(const Work&, const RowState*, const Block&) {}
__device__ void merge_checks(const Work&, const RowState*, std::uint32_t, Block&) {}
__device__ void write_check(const Work&, const Entry&, const Block&) {}

template <class T>
__device__ T from_lane(T value, int distance) {
  static_assert(sizeof(T) % 4 == 0);
  constexpr int kWords = static_cast<int>(sizeof(T) / 4);
  int word[kWords];
  memcpy(word, &value, sizeof value);
  for (int i = 0; i < kWords; ++i) word[i] = __shfl_down_sync(0xffffffffu, word[i], distance);
  memcpy(&value, word, sizeof value);
  return value;
}

__device__ void add(std::uint32_t& into, std::uint32_t from) {
  into += from;
}

// The tree of the lanes, then that of the warps: for the first lane of the first warp, after a
// barrier.
template <class T>
__device__ void leave_sum_of_warp(T mine, Block& block) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const T other = from_lane(mine, distance);
    add(mine, other);
  }
  if (threadIdx.x % 32 == 0) *block.sum<T>(static_cast<int>(threadIdx.x) / 32) = mine;
}
template <class T>
__device__ T sum_of_warps(Block& block) {
  T total = *block.sum<T>(static_cast<int>(threadIdx.x) % kWarps);
  for (int distance = kWarps / 2; distance > 0; distance /= 2) {
    const T other = from_lane(total, distance);
    add(total, other);
  }
  return total;
}
// The same for all threads, where time does not matter.
template <class T>
__device__ T sum_of_block(T mine, Block& block) {
  __syncthreads();  // whoever still reads the last one
  leave_sum_of_warp(mine, block);
  __syncthreads();
  const T total = sum_of_warps<T>(block);
  __syncthreads();
  if (threadIdx.x == 0) *block.sum<T>(0) = total;
  __syncthreads();
  return *block.sum<T>(0);
}

// These change the state of a chunk in state(), by the first thread.

__device__ __noinline__ void careful(const Chunk& chunk, double eps, Block& block) {
  const int thread = static_cast<int>(threadIdx.x);
  const Census census = sum_of_block(census_of(chunk, thread, eps), block);
  const double absmax = greater_of(absolute(census.min), absolute(census.max));
  const std::int64_t finite = chunk.n - census.nans - census.pos_infs - census.neg_infs;
  Centred sums;
  Centred centred;
  std::int32_t exponent = 0;
  if (finite > 0) {
    exponent = exponent_of(absmax);
    sums = sum_of_block(careful_sums(chunk, thread, exponent, 0.0), block);
    const double mean = sums.sum / static_cast<double>(finite);
    centred = sum_of_block(careful_sums(chunk, thread, exponent, mean), block);
  }
  if (thread == 0) *block.state() = careful_state(census, chunk.n, exponent, sums, centred);
}

template <class Format>
__device__ __noinline__ void look_again(const Chunk& chunk, unsigned needs, Block& block) {
  const int thread = static_cast<int>(threadIdx.x);
  const std::byte* data = chunk.data + chunk.begin * (16 / Format::kPerVector);
  if ((needs & kCentre) != 0) {
    const double mean = block.state()->mean;
    const Centred centred = sum_of_block(centred_of<Format>(data, chunk.n, thread, mean), block);
    if (thread == 0) block.state()->m2 = second_moment(centred, chunk.n);
  }
  if ((needs & kSubnormals) != 0) {
    const std::uint32_t count = sum_of_block(subnormals_of<Format>(data, chunk.n, thread), block);
    if (thread == 0) block.state()->subnormals = count;
  }
}

__device__ void copy_async(uint4* to, const std::byte* from) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
__device__ void commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ void wait_for_oldest() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kDepth - 1) : "memory");
}

// Whether the chunk goes through the stages: one run of memory of a type that people train with.
__device__ bool is_staged(const Chunk& chunk) {
  const auto address = reinterpret_cast<std::uintptr_t>(chunk.data);
  return chunk.gaps == nullptr && address % 16 == 0 && chunk.dtype <= DType::float8_e5m2;
}

// Asks for the first vectors of a chunk; every thread reads what it asked for itself.
__device__ void begin_loads(const Chunk& chunk, Block& block) {
  const auto bytes = static_cast<int>(chunk.n * item_bytes(chunk.dtype));
  const std::byte* data = chunk.data + chunk.begin * item_bytes(chunk.dtype);
  const int vectors = is_staged(chunk) ? bytes / 16 : 0;
  const int thread = static_cast<int>(threadIdx.x);
  for (int k = 0; k < kDepth; ++k) {
    const int v = thread + k * kThreads;
    if (v < vectors) copy_async(&block.stage[k][thread], data + v * 16);
    commit();
  }
}

// Hands the elements of this thread to `out`.
template <class Format, class Out>
__device__ void each_of_run(const Chunk& chunk, Out& out, Block& block) {
  const int thread = static_cast<int>(threadIdx.x);
  const std::byte* data = chunk.data + chunk.begin * (16 / Format::kPerVector);
  const auto n = static_cast<int>(chunk.n);
  if (is_staged(chunk)) {
    const int vectors = n / Format::kPerVector;
    int k = 0;
#pragma unroll 2
    for (int v = thread; v < vectors; v += kThreads) {
      wait_for_oldest();
      uint4* slot = &block.stage[k][thread];
      const uint4 vector = *slot;
      const int next = v + kDepth * kThreads;
      if (next < vectors) copy_async(slot, data + next * 16);
      commit();
      k = (k + 1) % kDepth;
      const std::uint32_t word[4] = {vector.x, vector.y, vector.z, vector.w};
      out.vector(word);
    }
    last_element<Format>(data, n, thread, out);
  } else {
    each_element_of<Format, false>(data, n, thread, out);
  }
}

template <class Format>
__device__ void run(const Chunk& chunk, NoCheck, double eps, unsigned, Block& block) {
  Accumulator<Format> accumulator(eps);
  each_of_run<Format>(chunk, accumulator, block);
  leave_sum_of_warp(accumulator.sums(), block);
}

// By the first warp: the state of the chunk, and what it needs besides.
template <class Format>
__device__ void conclude(const Chunk& chunk, Block& block) {
  using Real = typename Format::Real;
  const auto sums = sum_of_warps<Sums<Real>>(block);
  if (threadIdx.x != 0) return;
  *block.state() = state_of(sums, chunk.n);
  block.needs = needs<Format>(sums, *block.state());
}

template <class Do>
__device__ void by_format(DType dtype, Do&& act) {
  switch (dtype) {
    case DType::float32:
      act(Float32{});
      break;
    case DType::bfloat16:
      act(Bfloat16{});
      break;
    case DType::float16:
      act(Float16{});
      break;
    case DType::float64:
      act(Float64{});
      break;
    case DType::float8_e4m3fn:
      act(Float8E4m3fn{});
      break;
    case DType::float8_e5m2:
      act(Float8E5m2{});
      break;
    default:
      break;
  }
}

__device__ std::uint32_t tensor_of(const Work& work, std::uint32_t chunk) {
  if (work.entries == nullptr) {
    std::uint32_t tensor = 0;
    while (tensor + 1 < work.tensors && work.inlined[tensor + 1].first_chunk <= chunk) ++tensor;
    return tensor;
  }
  // Every tensor has a chunk, so the one we look for is at most kCoarse - 1 behind.
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t first = work.coarse[chunk / kCoarse];
  const std::uint32_t candidate = first + lane;
  const bool begun = candidate < work.tensors && work.first_chunk[candidate] <= chunk;
  return first + 31 -
         static_cast<std::uint32_t>(__clz(static_cast<int>(__ballot_sync(0xffffffffu, begun))));
}

// By a warp: eight bytes each, then the stamp once they are visible to the host.
__device__ void write_result(const RowState& state, volatile Result* to, std::uint64_t stamp,
                             const Work& work, const Entry& entry) {
  constexpr unsigned kWords = sizeof(RowState) / 8;
  const unsigned lane = threadIdx.x % 32;
  if (lane < kWords) {
    reinterpret_cast<volatile std::uint64_t*>(to)[lane] =
        reinterpret_cast<const std::uint64_t*>(&state)[lane];
  } else if (lane == kWords) {
    to->launch = work.launch;
    to->row = entry.row;
  } else if (lane == kWords + 1 && work.launch != 0) {
    to->window = work.window[entry.window];
  }
  __syncwarp();
  if (lane == 0) {
    __threadfence_system();
    to->stamp = stamp;
  }
}

// By the first warp: state() of the block is the tensor's, and so is its check.
template <class Parameters, class Shared>
__device__ void publish(const Parameters& work, const Entry& entry, Shared& block) {
  RowState& state = *block.state();
  if (threadIdx.x == 0) multiply(state, entry.multiplicity);
  __syncwarp();
  write_check(work, entry, block);
  if (work.launch == 0) {
    write_result(state, work.results + entry.row, work.serial, work, entry);
    return;
  }
  unsigned long long place = 0;
  bool has_room = true;
  if (threadIdx.x == 0) {
    // A place is taken only where there is room, for the host reads them in order.
    place = atomicAdd(work.ring.head, 0ull);
    for (;;) {
      has_room = place - *work.ring.tail < work.ring.capacity;
      if (!has_room) break;
      const unsigned long long seen = atomicCAS(work.ring.head, place, place + 1);
      if (seen == place) break;
      place = seen;
    }
    if (!has_room) *work.ring.dropped_seen = atomicAdd(work.ring.dropped, 1ull) + 1;
  }
  if (__shfl_sync(0xffffffffu, has_room ? 1 : 0, 0) == 0) return;
  place = __shfl_sync(0xffffffffu, place, 0);
  write_result(state, work.ring.results + place % work.ring.capacity, place + 1, work, entry);
}

// The sum over a warp, for every lane: additions commute, so all of them see the same bits.
template <class T>
__device__ T add_lanes(T value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// Numbers so large or small that a state has an exponent: the tree of pairs.
__device__ __noinline__ RowState merge_scaled(RowState mine) {
  for (int distance = kGroup / 2; distance > 0; distance /= 2) {
    const RowState other = from_lane(mine, distance);
    merge_states(mine, other);
  }
  return mine;
}

// By a warp: the states of the members of a group, merged; the first lane has the result. All at
// once where numbers are of ordinary size: the second moments are moved to the common mean.
__device__ __noinline__ RowState merge_members(const RowState* partials, std::uint32_t members) {
  constexpr int kWords = static_cast<int>(sizeof(RowState) / 8);
  const std::uint32_t lane = threadIdx.x % 32;
  RowState mine;
  if (lane < members) {
    unsigned long long word[kWords];
    for (int i = 0; i < kWords; ++i) {
      word[i] = __ldcg(reinterpret_cast<const unsigned long long*>(partials + lane) + i);
    }
    memcpy(&mine, word, sizeof mine);
  }
  if (!__all_sync(0xffffffffu, mine.exponent == 0 && is_finite(mine.sum))) {
    return merge_scaled(mine);
  }
  const auto own = static_cast<double>(mine.finite());
  const double own_mean = mine.mean;
  each_state_field([&](auto field) {
    if constexpr (field.law == MergeLaw::add) {
      mine.*field.member = add_lanes(mine.*field.member);
    }
  });
  const auto all = static_cast<double>(mine.finite());
  mine.mean = all > 0.0 ? mine.sum / all : 0.0;
  const double away = own_mean - mine.mean;
  mine.m2 = add_lanes(own > 0.0 ? mine.m2 + own * away * away : 0.0);
  each_state_field([&](auto field) {
    if constexpr (field.law == MergeLaw::least || field.law == MergeLaw::greatest) {
      for (int distance = 16; distance > 0; distance /= 2) {
        double& bound = mine.*field.member;
        const double other = __shfl_xor_sync(0xffffffffu, bound, distance);
        bound = field.law == MergeLaw::least ? lesser_of(bound, other) : greater_of(bound, other);
      }
    }
  });
  return mine;
}

// By the first warp: stores state() and tells whether this is the last of `members` to do so.
__device__ bool store_and_count(RowState* to, unsigned int* counter, std::uint32_t members,
                                Block& block) {
  constexpr unsigned kWords = sizeof(RowState) / 8;
  __syncwarp();
  if (threadIdx.x < kWords) {
    __stcg(reinterpret_cast<unsigned long long*>(to) + threadIdx.x,
           reinterpret_cast<const unsigned long long*>(block.state())[threadIdx.x]);
  }
  __syncwarp();
  unsigned last = 0;
  if (threadIdx.x == 0) {
    unsigned before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    last = before == members - 1 ? 1 : 0;
    if (last != 0) *counter = 0;  // for the next launch, or the next replay of this one
  }
  return __shfl_sync(0xffffffffu, last, 0) != 0;
}

// By the first warp. It leaves the state, and the check, with the others of its group. The last of
// a group merges them and goes on with what that is a member of.
template <class Parameters, class Shared>
__device__ __noinline__ void merge_chunk(const Parameters& work, const Entry& entry,
                                         std::uint32_t count, std::uint32_t member, Shared& block) {
  RowState* partials = work.partials + entry.first_partial;
  unsigned int* counters = work.counters + entry.first_counter;
  for (;;) {
    const std::uint32_t groups = (count + kGroup - 1) / kGroup;
    const std::uint32_t group = member / kGroup;
    const std::uint32_t members =
        group + 1 < groups ? static_cast<std::uint32_t>(kGroup) : count - group * kGroup;
    store_check(work, partials + member, block);
    if (!store_and_count(partials + member, counters + group, members, block)) return;
    const RowState merged = merge_members(partials + group * kGroup, members);
    if (threadIdx.x == 0) *block.state() = merged;
    merge_checks(work, partials + group * kGroup, members, block);
    __syncwarp();
    if (groups == 1) break;
    partials += count;
    counters += groups;
    count = groups;
    member = group;
  }
  publish(work, entry, block);
}

__device__ const Entry& entry_of(const Work& work, std::uint32_t tensor) {
  return work.entries == nullptr ? work.inlined[tensor] : work.entries[tensor];
}

// By one warp.
__device__ void find_range(const Work& work, std::uint32_t at, Range* range) {
  const std::uint32_t tensor = tensor_of(work, at);
  if (threadIdx.x % 32 != 0) return;
  const Entry& entry = entry_of(work, tensor);
  const std::int64_t each = kChunkBytes / item_bytes(entry.dtype);
  range->tensor = tensor;
  range->index = at - entry.first_chunk;
  range->chunks = static_cast<std::uint32_t>((entry.elements + each - 1) / each);
  Chunk& chunk = range->chunk;
  chunk.data = static_cast<const std::byte*>(entry.data);
  chunk.gaps = entry.strides < 0 ? nullptr : work.gaps + entry.strides;
  chunk.dtype = entry.dtype;
  chunk.begin = static_cast<std::int64_t>(range->index) * each;
  chunk.n = entry.elements - chunk.begin < each ? entry.elements - chunk.begin : each;
}

// A block's turn. It sums the chunk whose first loads are under way and asks for the first of the
// next one. Then the first warp concludes, and merges while the others go on. Blocks draw their
// chunks, for not all multiprocessors are equally far from memory.
template <class Parameters, class Shared>
__device__ __forceinline__ void measure_all(const Parameters& work, Shared& block) {
  const bool is_first_warp = threadIdx.x < 32;
  const bool is_last_warp = threadIdx.x >= kThreads - 32;  // which has less to do
  begin_checks(block);
  if (is_last_warp) {
    if (threadIdx.x % 32 == 0) block.at[0] = blockIdx.x;
    find_range(work, blockIdx.x, block.range(0));
    find_factors(work, block, 0);
  }
  __syncthreads();
  begin_loads(block.range(0)->chunk, block);
  for (unsigned turn = 0;; ++turn) {
    if (block.at[turn % 3] >= work.chunks) break;
    if (is_last_warp) {
      std::uint32_t next = 0;
      if (threadIdx.x % 32 == 0) next = gridDim.x + atomicAdd(work.drawn, 1u);
      next = __shfl_sync(0xffffffffu, next, 0);
      if (threadIdx.x % 32 == 0) block.at[(turn + 1) % 3] = next;
      if (next < work.chunks) {
        find_range(work, next, block.range(turn + 1));
        find_factors(work, block, turn + 1);
      }
    }
    const Chunk& chunk = block.range(turn)->chunk;  // in shared memory: its address is taken
    const bool is_plain = chunk.gaps == nullptr && chunk.dtype <= DType::float8_e5m2;
    const auto check = check_of(work, *block.range(turn), is_plain);
    if (is_plain) {
      by_format(chunk.dtype,
                [&](auto format) { run<decltype(format)>(chunk, check, work.eps, turn, block); });
    }
    __syncthreads();
    if (block.at[(turn + 1) % 3] < work.chunks) begin_loads(block.range(turn + 1)->chunk, block);
    if (is_first_warp && is_plain) {
      by_format(chunk.dtype, [&](auto format) { conclude<decltype(format)>(chunk, block); });
      conclude_check(check, chunk, block);
    }
    __syncthreads();
    const unsigned needs = is_plain ? block.needs : kCare;
    if (check.is_alone) {
      if (threadIdx.x == 0) *block.state() = RowState{};
    } else if ((needs & kCare) != 0) {
      careful(chunk, work.eps, block);
    } else if (needs != 0) {
      by_format(chunk.dtype,
                [&](auto format) { look_again<decltype(format)>(chunk, needs, block); });
    }
    check_again(check, chunk, block);
    if (!is_first_warp) continue;
    __syncwarp();
    const Range& range = *block.range(turn);
    const Entry& entry = entry_of(work, range.tensor);
    if (range.chunks == 1) {
      publish(work, entry, block);
    } else {
      merge_chunk(work, entry, range.chunks, range.index, block);
    }
    __syncwarp();
  }
  if (threadIdx.x == 0 && atomicAdd(work.left, 1u) == gridDim.x - 1) {
    *work.drawn = 0;  // for the next launch with this memory, or the next replay of this one
    *work.left = 0;
  }
}

}  // namespace
}  // namespace trainmon::cuda
