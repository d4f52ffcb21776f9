#include "stats/stand_in_kernels.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "stats/host_kernel.h"

namespace trainmon::stand_in {

using cuda::CheckedWork;
using cuda::CheckEntry;
using cuda::CheckSums;
using cuda::Entry;
using cuda::Gaps;
using cuda::Result;
using cuda::Taken;
using cuda::Work;

void* Memory::take(std::size_t bytes, int device) {
  constexpr std::size_t kFilled = 1 << 16;  // more would only cost time
  constexpr int kUnexpected = 0xA5;
  // Pages that nobody writes take no memory, however many there are.
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) std::abort();
  auto* begin = static_cast<std::byte*>(pages);
  std::memset(begin, kUnexpected, std::min(bytes, kFilled));
  blocks[begin] = {bytes, device, true};
  return begin;
}

const std::pair<const std::byte* const, Memory::Block>* Memory::block_of(const void* at) const {
  auto after = blocks.upper_bound(static_cast<const std::byte*>(at));
  if (after == blocks.begin()) return nullptr;
  return &*std::prev(after);
}

void Memory::give_back(void* memory) {
  const auto found = blocks.find(static_cast<std::byte*>(memory));
  if (found == blocks.end()) {
    faults.emplace_back("freed what was not allocated");
  } else if (!found->second.is_there) {
    faults.emplace_back("freed twice");
  } else {
    found->second.is_there = false;  // its addresses are not used again
    mmap(memory, found->second.bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
}

bool Memory::is_of_host(const void* at) const {
  const auto* block = block_of(at);
  return block != nullptr && block->second.device == kHost &&
         static_cast<const std::byte*>(at) < block->first + block->second.bytes;
}

bool Memory::holds(const void* at, std::size_t bytes, int device, const char* what) {
  const auto* block = block_of(at);
  const auto* begin = static_cast<const std::byte*>(at);
  const char* trouble = nullptr;
  if (block == nullptr || begin + bytes > block->first + block->second.bytes) {
    trouble = " is not in allocated memory";
  } else if (!block->second.is_there) {
    trouble = " was freed";
  } else if (device != block->second.device) {
    trouble = " is memory of another device, or of the host";
  }
  if (trouble != nullptr) faults.push_back(what + std::string(trouble));
  return trouble == nullptr;
}

namespace {

const Entry& entry_of(const Work& work, std::uint32_t tensor) {
  return work.entries == nullptr ? work.inlined[tensor] : work.entries[tensor];
}
std::uint32_t chunks_of(const Entry& entry) {
  const std::int64_t each = cuda::kChunkBytes / cuda::item_bytes(entry.dtype);
  return static_cast<std::uint32_t>((entry.elements + each - 1) / each);
}

// States and counters of the groups of a tensor of so many chunks.
struct Levels {
  std::uint32_t partials = 0;
  std::uint32_t counters = 0;
  explicit Levels(std::uint32_t chunks) {
    while (chunks > 1) {
      partials += chunks;
      chunks = (chunks + cuda::kGroup - 1) / cuda::kGroup;
      counters += chunks;
    }
  }
};

bool has_checks(const CheckedWork& work) {
  return work.check_results != nullptr;
}
const CheckEntry& check_entry(const CheckedWork& work, std::uint32_t tensor) {
  return work.checks == nullptr ? work.inlined_checks[tensor] : work.checks[tensor];
}

// The device whose memory this is, by its counters.
int device_of(const Memory& memory, const Work& work) {
  const auto after = memory.blocks.upper_bound(reinterpret_cast<const std::byte*>(work.drawn));
  return after == memory.blocks.begin() ? kHost : std::prev(after)->second.device;
}

// What the kernel finds its tensors by, as its comments say.
void check_table(Memory& memory, const Work& work, int device) {
  const std::size_t tensors = work.tensors;
  const std::size_t coarse = (work.chunks - 1) / cuda::kCoarse + 1;
  if (!memory.holds(work.entries, tensors * sizeof(Entry), device, "the table of a launch") ||
      !memory.holds(work.first_chunk, tensors * 4, device, "the first chunks of a launch") ||
      !memory.holds(work.coarse, coarse * 4, device, "the coarse index of a launch")) {
    return;
  }
  std::uint32_t tensor = 0;
  for (std::size_t i = 0; i < coarse; ++i) {
    const std::uint32_t chunk = static_cast<std::uint32_t>(i) * cuda::kCoarse;
    while (tensor + 1 < tensors && work.entries[tensor + 1].first_chunk <= chunk) ++tensor;
    if (work.coarse[i] != tensor) memory.faults.emplace_back("the coarse index is wrong");
  }
  for (std::size_t i = 0; i < tensors; ++i) {
    if (work.first_chunk[i] != work.entries[i].first_chunk) {
      memory.faults.emplace_back("the first chunks are not those of the tensors");
    }
  }
}

void check_entry(Memory& memory, const Work& work, const Entry& entry, int device) {
  std::int64_t last = entry.elements - 1;
  std::int64_t first = 0;
  if (entry.strides >= 0) {
    if (!memory.holds(work.gaps + entry.strides, sizeof(Gaps), device, "a layout")) return;
    const Gaps& gaps = work.gaps[entry.strides];
    last = 0;
    for (int i = 0; i < gaps.ndim; ++i) {
      (gaps.strides[i] < 0 ? first : last) += (gaps.sizes[i] - 1) * gaps.strides[i];
    }
  }
  const std::int64_t item = cuda::item_bytes(entry.dtype);
  memory.holds(static_cast<const std::byte*>(entry.data) + first * item,
               static_cast<std::size_t>((last - first + 1) * item), device, "a tensor");
}

void check_zero(Memory& memory, const unsigned* counters, std::size_t count, int device) {
  if (!memory.holds(counters, count * sizeof(unsigned), device, "counters")) return;
  if (std::any_of(counters, counters + count, [](unsigned value) { return value != 0; })) {
    memory.faults.emplace_back("counters are not zero before a launch");
  }
}

RowState state_of(const Work& work, const Entry& entry, Results results) {
  RowState state;
  if (results == Results::computed) {
    const Gaps* gaps = entry.strides < 0 ? nullptr : work.gaps + entry.strides;
    return cuda::host::state_of_tensor(entry, gaps, work.eps);
  }
  state.count = entry.elements;
  state.sum = static_cast<double>(entry.row);
  return state;
}

// What nobody reads is what no program would expect.
CheckSums check_of(const Work& work, const Entry& entry, const CheckEntry& check, Results results) {
  if (check.taken == Taken::state) return {~std::uint64_t{0}, {-1.0}};
  if (results != Results::computed) return {};
  const Gaps* gaps = entry.strides < 0 ? nullptr : work.gaps + entry.strides;
  return cuda::host::check_of_tensor(entry, gaps, check.first);
}

// As publish() of the kernel.
void publish(const Work& work, const Entry& entry, const RowState& state) {
  Result* to = work.results + entry.row;
  std::uint64_t stamp = work.serial;
  if (work.launch != 0) {
    const std::uint64_t place = *work.ring.head;
    auto& tail = const_cast<std::uint64_t&>(*work.ring.tail);
    if (place - std::atomic_ref(tail).load(std::memory_order_acquire) >= work.ring.capacity) {
      auto& seen = const_cast<std::uint64_t&>(*work.ring.dropped_seen);
      std::atomic_ref(seen).store(++*work.ring.dropped, std::memory_order_release);
      return;
    }
    *work.ring.head = place + 1;
    to = work.ring.results + place % work.ring.capacity;
    stamp = place + 1;
    to->window = work.window[entry.window];
  }
  to->state = state;
  to->launch = work.launch;
  to->row = entry.row;
  std::atomic_ref(to->stamp).store(stamp, std::memory_order_release);
}

struct Range {
  const std::byte* begin;
  std::size_t bytes;
};
bool overlap(const Range& a, const Range& b) {
  return a.bytes > 0 && b.bytes > 0 && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}
Range range_of(const void* at, std::size_t bytes) {
  return {static_cast<const std::byte*>(at), at == nullptr ? 0 : bytes};
}

}  // namespace

bool overlap(const CheckedWork& a, const CheckedWork& b) {
  return overlap(range_of(a.drawn, 4), range_of(b.drawn, 4)) ||
         overlap(range_of(a.results, a.tensors * sizeof(Result)),
                 range_of(b.results, b.tensors * sizeof(Result))) ||
         overlap(range_of(a.entries, a.tensors * sizeof(Entry)),
                 range_of(b.entries, b.tensors * sizeof(Entry))) ||
         overlap(range_of(a.check_results, a.tensors * sizeof(CheckSums)),
                 range_of(b.check_results, b.tensors * sizeof(CheckSums)));
}

void run_measure(Memory& memory, const CheckedWork& work, Results results) {
  if (results == Results::stamped && work.launch == 0) {
    for (std::uint32_t i = 0; i < work.tensors; ++i) {
      Result& result = work.results[entry_of(work, i).row];
      std::atomic_ref(result.stamp).store(work.serial, std::memory_order_release);
    }
    return;
  }
  const int device = device_of(memory, work);
  const std::size_t before = memory.faults.size();
  if (work.entries != nullptr) check_table(memory, work, device);
  if (work.checks != nullptr && has_checks(work)) {
    memory.holds(work.checks, work.tensors * sizeof(CheckEntry), device, "the checks of a launch");
  }
  check_zero(memory, work.drawn, 2, device);
  std::uint32_t chunks = 0;
  for (std::uint32_t i = 0; i < work.tensors && memory.faults.size() == before; ++i) {
    const Entry& entry = entry_of(work, i);
    const Levels levels(chunks_of(entry));
    if (entry.first_chunk != chunks) memory.faults.emplace_back("a tensor's chunks are misplaced");
    chunks += chunks_of(entry);
    check_entry(memory, work, entry, device);
    if (levels.counters > 0) {
      memory.holds(work.partials + entry.first_partial, levels.partials * sizeof(RowState), device,
                   "states of chunks");
      if (has_checks(work)) {
        memory.holds(work.check_partials + entry.first_partial, levels.partials * sizeof(CheckSums),
                     device, "checks of chunks");
      }
      check_zero(memory, work.counters + entry.first_counter, levels.counters, device);
    }
    if (work.launch == 0) {
      memory.holds(work.results + entry.row, sizeof(Result), kHost, "a result");
    }
    if (has_checks(work)) {
      memory.holds(work.check_results + entry.row, sizeof(CheckSums), kHost, "a check");
    }
    if (memory.faults.size() != before) return;
    if (has_checks(work)) {
      const CheckEntry& check = check_entry(work, i);
      work.check_results[entry.row] = check_of(work, entry, check, results);
      if (check.taken == Taken::check) {
        publish(work, entry, {});
        continue;
      }
      if (check.taken == Taken::both && entry.multiplicity != 1) {
        memory.faults.emplace_back("a check of elements that count more than once");
      }
    }
    publish(work, entry, state_of(work, entry, results));
  }
  if (memory.faults.size() == before && chunks != work.chunks) {
    memory.faults.emplace_back("chunks are missing");
  }
}

}  // namespace trainmon::stand_in
