// The bounds of JSON that somebody else may have written, in one place. Code that walks a deep
// document needs a stack as deep; a parsed one takes some forty times its text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace trainmon {

inline constexpr std::int64_t kMaxJsonBytes = std::int64_t{1} << 24;
inline constexpr int kMaxJsonDepth = 64;

// Whether lists and objects lie in each other deeper than kMaxJsonDepth. Of text that is no JSON
// anything may be said.
bool is_too_deep(std::string_view json);

// The text of the file; SinkError where it cannot be read, is longer than `most` or is too deep.
std::string read_json_text(const std::filesystem::path& path, std::int64_t most = kMaxJsonBytes);

}  // namespace trainmon
