// One thread per worker, a shared counter: pieces are large (segments, files).
#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace trainmon {

unsigned useful_threads(unsigned asked) {
  return asked > 0 ? asked : std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
}

void for_each_parallel(std::size_t count, unsigned threads,
                       const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::jthread> workers;
  const std::size_t wanted = std::min<std::size_t>(std::max(threads, 1u), count);
  try {
    for (std::size_t i = 1; i < wanted; ++i) workers.emplace_back(run);
  } catch (const std::system_error&) {
    // No more threads to be had: those there are do it all.
  }
  run();
  workers.clear();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace trainmon
