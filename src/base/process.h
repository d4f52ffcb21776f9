// Which process wrote something, and whether it is still there.
#pragma once

#include <cstdint>
#include <string>

namespace trainmon {

std::string host_name();
// The one this process is in, "pid:[4026531836]"; "" where that cannot be told.
std::string pid_namespace();

enum class Alive : std::uint8_t { yes, no, unknown };
// Whether the process `pid` of that host and namespace ("" for unknown) lives. It was there at
// `started` (UTC, ISO 8601; "" for unknown): a younger process has only got its number. Unknown
// for other hosts and namespaces.
Alive is_alive(const std::string& host, const std::string& pid_namespace, std::int64_t pid,
               const std::string& started);

// UTC, ISO 8601, seconds, of nanoseconds since 1970.
std::string utc_text(std::int64_t time_ns);
std::string utc_now();
// Since 1970, of such a text; 0 for any other.
double seconds_of_utc(const std::string& text);

}  // namespace trainmon
