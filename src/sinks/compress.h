// zstd where the build has it; without it nothing is compressed and compressed frames are refused.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace trainmon {

// One zstd frame with these bytes; nullopt when this build has no zstd or it fails.
std::optional<std::string> compressed(std::string_view bytes);
// The inverse, into memory that is used again; false when this build has no zstd, or the result is
// not exactly `size` bytes. Then `out` holds nothing of use.
bool decompress(std::string_view bytes, std::size_t size, std::string& out);
// Whether this build has zstd.
bool has_zstd();

}  // namespace trainmon
