// Faults on demand at named places, for tests; without TRAINMON_FAILPOINTS nothing is left of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace trainmon {

// What a site should pretend happened.
struct Failure {
  int error = 0;                                                // errno value, 0 for none
  std::size_t limit = std::numeric_limits<std::size_t>::max();  // bytes a write may take
};

#if defined(TRAINMON_FAILPOINTS)

// Counts a hit of `site` and carries out what was asked for it. It returns an error or a limit,
// sleeps, aborts, kills the process (SIGKILL) or throws std::runtime_error. Thread-safe.
Failure failpoint(std::string_view site);

// Replaces all rules. `spec` is rules separated by ';', each site=action[@k][+]:
//   action  errno:<number> | short:<bytes> | sleep:<milliseconds> | abort | kill | throw
//   @k      at the k-th hit from now (1 is the default); + also at every later one
// Throws std::invalid_argument for anything else. The environment variable TRAINMON_FAILPOINTS_SPEC
// is read at the first hit.
void set_failpoints(std::string_view spec);
// Hits of `site` since the rules were last set.
std::int64_t failpoint_hits(std::string_view site);

#else

constexpr Failure failpoint(std::string_view) {
  return {};
}

#endif

}  // namespace trainmon
