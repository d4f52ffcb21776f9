#include "monitor/forks.h"

#include <pthread.h>

#include <atomic>

namespace trainmon {
namespace {

std::atomic<std::uint64_t> count{0};

}  // namespace

std::uint64_t forks() {
  return count.load(std::memory_order_relaxed);
}

void watch_forks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
}

}  // namespace trainmon
