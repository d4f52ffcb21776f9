// Frames of a log with checksums put right, so that what they protect is read too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/crc32c.h"
#include "sinks/log_format.h"

namespace trainmon::fuzz {

inline void put_u32(std::string& bytes, std::size_t at, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(value >> (8 * i));
}
inline std::uint32_t u32_at(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return value;
}

// Every frame believed: sizes that reach beyond the end are shortened, checksums are made.
inline std::string with_checksums(std::string bytes) {
  for (std::size_t at = bytes.find(log_format::kFrameMagic); at != std::string::npos;
       at = bytes.find(log_format::kFrameMagic, at)) {
    const std::size_t payload = at + log_format::kFrameHeaderBytes;
    if (payload > bytes.size()) break;
    const auto left = static_cast<std::uint32_t>(bytes.size() - payload);
    const std::uint32_t stored = std::min(u32_at(bytes, at + 8), left);
    put_u32(bytes, at + 8, stored);
    const auto codec = static_cast<log_format::Codec>(bytes[at + 5]);
    if (codec == log_format::Codec::none) put_u32(bytes, at + 12, stored);
    put_u32(bytes, at + 20, crc32c(std::string_view(bytes).substr(payload, stored)));
    put_u32(bytes, at + 24,
            crc32c(std::string_view(bytes).substr(at, log_format::kFrameHeaderBytes - 4)));
    at = payload + stored;
  }
  return bytes;
}

}  // namespace trainmon::fuzz
