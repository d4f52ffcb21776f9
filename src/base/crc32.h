// CRC-32 as zlib, gzip and PNG have it, for digests that others compute as well.
#pragma once

#include <cstdint>
#include <string_view>

namespace trainmon {

// Of `bytes`, continuing from the checksum `before` of what precedes them (0 at the start).
std::uint32_t crc32(std::string_view bytes, std::uint32_t before = 0);
// The same by table only, whatever the processor; for tests.
std::uint32_t crc32_table(std::string_view bytes, std::uint32_t before = 0);
// Of two runs of bytes after one another, from the checksum of each.
std::uint32_t crc32_join(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes);

}  // namespace trainmon
