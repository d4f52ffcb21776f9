// Partial states and counters of launches of few tensors. What is launched on one stream runs one
// after another, so all of it uses the same memory, however far the host is ahead.
#pragma once

#include <cstddef>
#include <vector>

#include "stats/cuda/driver.h"
#include "stats/cuda/launch_table.h"
#include "stats/cuda/work.h"

namespace trainmon::cuda {

// Of one device; guarded by its mutex.
class StreamMemory {
 public:
  // Points `work` at the memory of this stream, whose first use takes it and clears it there.
  // False where `need` is more, or there is none for another stream. Not in a capture, for its
  // replays may run on any stream.
  bool point(const Driver& driver, Stream stream, const Need& need, Work& work);
  // A launch on it failed: the device may still write there, so it is not used again.
  void give_up(Stream stream);

 private:
  static constexpr unsigned long long kNoStream = ~0ull;
  struct Known {
    Stream stream = nullptr;
    unsigned long long id = 0;  // streams may get the address of one that was destroyed
    Pointer partials = 0;
    Pointer counters = 0;
  };
  std::vector<Known> known_;
};

}  // namespace trainmon::cuda
