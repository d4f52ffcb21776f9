// MD5 (RFC 1321), for digests that others compute as well; no protection against anybody.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace trainmon {

// Of bytes that come piece by piece. Serial by definition: each 64 bytes need the result of those
// before.
class Md5 {
 public:
  void add(std::string_view bytes);
  // 32 lower-case hex digits; nothing may be added afterwards.
  std::string finish();

 private:
  void take(const char* block);

  std::array<std::uint32_t, 4> state_ = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
  std::uint64_t bytes_ = 0;
  std::array<char, 64> rest_;  // the last bytes_ % 64
};

}  // namespace trainmon
