// What the child of the kill loop tells its parent.
#pragma once

#include <time.h>

#include <cstdint>

struct KillReport {
  std::int64_t time_ns = 0;   // monotonic clock, after the seal
  std::uint64_t sealed = 0;   // every row up to this seq was in a sealed batch then
  std::uint64_t flushed = 0;  // so many rows had been written and flushed
};

inline std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000 + now.tv_nsec;
}
