// The byte-wise way to a CRC-32 of any reflected generator: eight bytes a turn by eight tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trainmon {

using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr CrcTables crc_tables(std::uint32_t generator) {
  CrcTables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? generator : 0u);
    tables[0][i] = crc;
  }
  for (std::size_t i = 0; i < 256; ++i) {
    for (std::size_t t = 1; t < 8; ++t) {
      tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xFF];
    }
  }
  return tables;
}

// Of `bytes`, continuing from the checksum `before` of what precedes them.
inline std::uint32_t crc_by_tables(const CrcTables& tables, std::string_view bytes,
                                   std::uint32_t before) {
  std::uint32_t crc = ~before;
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  while (bytes.size() >= 8) {
    crc ^= static_cast<std::uint32_t>(at(0)) | static_cast<std::uint32_t>(at(1)) << 8 |
           static_cast<std::uint32_t>(at(2)) << 16 | static_cast<std::uint32_t>(at(3)) << 24;
    crc = tables[7][crc & 0xFF] ^ tables[6][(crc >> 8) & 0xFF] ^ tables[5][(crc >> 16) & 0xFF] ^
          tables[4][crc >> 24] ^ tables[3][at(4)] ^ tables[2][at(5)] ^ tables[1][at(6)] ^
          tables[0][at(7)];
    bytes.remove_prefix(8);
  }
  for (const char c : bytes) {
    crc = (crc >> 8) ^ tables[0][(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  }
  return ~crc;
}

}  // namespace trainmon
