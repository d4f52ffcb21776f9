// CRC-32C (Castagnoli), the checksum of log frames and tfevents.
#pragma once

#include <cstdint>
#include <string_view>

namespace trainmon {

// Of `bytes`, continuing from the checksum `before` of what precedes them (0 at the start).
std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0);
// The same by table only, whatever the processor; for tests.
std::uint32_t crc32c_table(std::string_view bytes, std::uint32_t before = 0);

}  // namespace trainmon
