// Memory of the driver stand-in, and its kernel: what it checks in the parameters of a launch and
// what it writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "stats/cuda/work.h"
#include "stats/driver_stand_in.h"

namespace trainmon::stand_in {

inline constexpr int kHost = -1;

// Blocks by their addresses. Freed ones are remembered, and their memory is not used again.
struct Memory {
  struct Block {
    std::size_t bytes;
    int device;
    bool is_there;
  };
  std::map<const std::byte*, Block> blocks;
  std::vector<std::string> faults;

  // Filled with what no program would expect.
  void* take(std::size_t bytes, int device);
  void give_back(void* memory);
  bool is_of_host(const void* at) const;
  // Whether a block of this device (or of the host) has these bytes; else a fault that names them.
  bool holds(const void* at, std::size_t bytes, int device, const char* what);

 private:
  const std::pair<const std::byte* const, Block>* block_of(const void* at) const;
};

// Whether two launches write to the same memory.
bool overlap(const cuda::CheckedWork& a, const cuda::CheckedWork& b);
// `work` has checks where its results have them.
void run_measure(Memory& memory, const cuda::CheckedWork& work, Results results);

}  // namespace trainmon::stand_in
