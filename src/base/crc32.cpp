// Eight bytes a turn by eight tables.
#include "base/crc32.h"

#include <array>

namespace trainmon {
namespace {

// Polynomials over GF(2) modulo the generator, bit 31 the constant term.
constexpr std::uint32_t kGenerator = 0xEDB88320u;

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kGenerator : 0u);
    tables[0][i] = crc;
  }
  for (std::size_t i = 0; i < 256; ++i) {
    for (std::size_t t = 1; t < 8; ++t) {
      tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xFF];
    }
  }
  return tables;
}
constexpr Tables kTables = make_tables();

std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t sum = 0;
  for (; a != 0; a <<= 1) {
    if ((a & 0x80000000u) != 0) sum ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kGenerator : 0u);
  }
  return sum;
}

}  // namespace

std::uint32_t crc32_table(std::string_view bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  while (bytes.size() >= 8) {
    crc ^= static_cast<std::uint32_t>(at(0)) | static_cast<std::uint32_t>(at(1)) << 8 |
           static_cast<std::uint32_t>(at(2)) << 16 | static_cast<std::uint32_t>(at(3)) << 24;
    crc = kTables[7][crc & 0xFF] ^ kTables[6][(crc >> 8) & 0xFF] ^ kTables[5][(crc >> 16) & 0xFF] ^
          kTables[4][crc >> 24] ^ kTables[3][at(4)] ^ kTables[2][at(5)] ^ kTables[1][at(6)] ^
          kTables[0][at(7)];
    bytes.remove_prefix(8);
  }
  for (const char c : bytes) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  }
  return ~crc;
}

std::uint32_t crc32(std::string_view bytes, std::uint32_t before) {
  return crc32_table(bytes, before);
}

std::uint32_t crc32_join(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) {
  // first * x^(8 second_bytes): the power by repeated squaring.
  std::uint32_t square = 0x00800000u;  // x^8
  for (; second_bytes != 0; second_bytes >>= 1) {
    if ((second_bytes & 1) != 0) first = product(first, square);
    square = product(square, square);
  }
  return first ^ second;
}

}  // namespace trainmon
