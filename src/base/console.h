// How trainmon speaks to a person: single lines that are written at once or not at all.
#pragma once

#include <string_view>

namespace trainmon {

// Writes `text` to a descriptor as it is. False, and at most a part is written, when that is full,
// closed or broken. Never throws, never waits for the reader of a pipe, a socket or a terminal, and
// never lets SIGPIPE reach the process. Any thread.
bool write_at_once(int descriptor, std::string_view text) noexcept;

// Where lines of the core go from now on: 2 is the default, -1 nowhere. For a process whose
// standard error was closed from the start, so that descriptor 2 may be any file of its.
void set_console(int descriptor) noexcept;

}  // namespace trainmon
