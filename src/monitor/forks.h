// How many forks this process is the child of.
#pragma once

#include <cstdint>

namespace trainmon {

// A monitor made before the last one is dead here: its writer thread stayed in the parent.
std::uint64_t forks();
// From now on forks are counted. May be called again.
void watch_forks();

}  // namespace trainmon
