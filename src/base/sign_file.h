// The packed direction file `NAME.sign` (docs/formats.md): one bit per element and plane.
//
//   8 bytes  "TMSIGN\0\1"
//   u32      planes: 1 (x > 0) or 2 (x > 0, then x < 0)
//   u32      ndim, at most 64
//   i64      the sizes, ndim of them
//   bytes    the planes, ceil(count / 8) each; element i of the C order in bit i % 8 of byte i / 8,
//            unused bits 0
//   u32      CRC-32C of everything before
//
// All little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainmon {

inline constexpr std::string_view kSignFileEnding = ".sign";

// The whole file. `signs` holds `planes` planes as probe() gives them (trainmon/probe.h).
std::vector<std::byte> sign_file(std::span<const std::int64_t> sizes, int planes,
                                 std::span<const std::byte> signs);

struct SignFile {
  std::vector<std::int64_t> sizes;
  std::int64_t count = 0;
  std::vector<std::span<const std::byte>> planes;  // views of the bytes given
};
// Throws std::runtime_error that says what is wrong (not a sign file, cut short, damaged, ...);
// never reads past `bytes`, whatever they are.
SignFile read_sign_file(std::span<const std::byte> bytes);

}  // namespace trainmon
