// The one way trainmon talks to a person while training runs: single lines, by default to stderr.
#pragma once

#include <string_view>

namespace trainmon {

// Receives a line without its end. Called from any thread; must not throw or block.
using LogHook = void (*)(std::string_view line);
// Replaces the hook of the process and returns the previous one; nullptr restores the default,
// which writes "trainmon: <line>\n" to the console (base/console.h).
LogHook set_log_hook(LogHook hook) noexcept;

// Passes `line` on, made printable (no control characters). Never throws.
void log_line(std::string_view line) noexcept;
// The same, yellow on a terminal (unless NO_COLOR is set or the hook is not the default one).
void log_warning(std::string_view line) noexcept;
// log_line at most once in `seconds` per topic; the next line of a topic says how many were held
// back. Topics are few and fixed; beyond 256 of them all further ones share one.
void log_line_limited(std::string_view topic, std::string_view line,
                      double seconds = 10.0) noexcept;

}  // namespace trainmon
