// Which process wrote something, and whether it is still there.
#pragma once

#include <cstdint>
#include <string>

namespace trainmon {

std::string host_name();
// The one this process is in, "pid:[4026531836]"; "" where that cannot be told.
std::string pid_namespace();

// Of this boot of the machine; "" where that cannot be told.
std::string boot_id();
// When a process began, in clock ticks since the boot; "" where there is none.
std::string start_ticks(std::int64_t pid);

// What a process said of itself. "" is unknown, and 0 of the number.
struct ProcessFacts {
  std::string host;
  std::string pid_namespace;  // in which `pid` is its number
  std::int64_t pid = 0;
  std::string started;  // UTC, ISO 8601
  std::string boot;     // boot_id()
  std::string ticks;    // start_ticks()
};

enum class Alive : std::uint8_t { yes, no, unknown };
// Whether it lives. A younger process has only got its number. Unknown for other hosts and
// namespaces.
Alive is_alive(const ProcessFacts& process);
// Whether it lives, and a signal such as SIGSTOP or a debugger holds it.
bool is_suspended(const ProcessFacts& process);

// UTC, ISO 8601, seconds, of nanoseconds since 1970.
std::string utc_text(std::int64_t time_ns);
std::string utc_now();
// Since 1970, of such a text; 0 for any other.
double seconds_of_utc(const std::string& text);

}  // namespace trainmon
