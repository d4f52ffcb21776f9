// Independent pieces of work shared out to a few threads.
#pragma once

#include <cstddef>
#include <functional>

namespace trainmon {

// So many threads as were asked for; 0: as many as this machine has, at most 8.
unsigned useful_threads(unsigned asked = 0);

// Calls work(0) ... work(count - 1), each once, on at most `threads` threads, in ascending order of
// their beginning. Rethrows the first exception once all threads have ended; after one, no further
// piece is begun.
void for_each_parallel(std::size_t count, unsigned threads,
                       const std::function<void(std::size_t)>& work);

}  // namespace trainmon
