#include "stats/cuda/stream_memory.h"

#include <algorithm>

#include "stats/cuda/current_context.h"

namespace trainmon::cuda {
namespace {

constexpr std::size_t kStreams = 16;
constexpr std::size_t kPartials = 8192;  // a tensor of 1 GiB: about 1 MB of states
constexpr std::size_t kCounters = 1024;

}  // namespace

bool StreamMemory::point(const Driver& driver, Stream stream, const Need& need, Work& work) {
  if (need.partials > kPartials || need.counters > kCounters) return false;
  unsigned long long id = 0;
  if (driver.stream_id(stream, &id) != 0) return false;
  const auto is_it = [&](const Known& one) { return one.stream == stream && one.id == id; };
  auto found = std::ranges::find_if(known_, is_it);
  if (found == known_.end()) {
    if (known_.size() == kStreams) return false;
    const Relaxed relaxed(driver);
    Known taken{stream, id};
    if (driver.device_alloc(&taken.partials, kPartials * sizeof(RowState)) != 0 ||
        driver.device_alloc(&taken.counters, kCounters * sizeof(unsigned)) != 0 ||
        driver.set_words(taken.counters, 0, kCounters, stream) != 0) {
      return false;
    }
    found = known_.insert(known_.end(), taken);
  }
  work.partials = reinterpret_cast<RowState*>(found->partials);
  point_at_counters(work, reinterpret_cast<unsigned*>(found->counters));
  return true;
}

void StreamMemory::give_up(Stream stream) {
  for (Known& one : known_) {
    if (one.stream == stream) one.id = kNoStream;
  }
}

}  // namespace trainmon::cuda
