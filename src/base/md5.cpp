// The four rounds of RFC 1321, unrolled.
#include "base/md5.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace trainmon {
namespace {

// floor(2^32 |sin(i + 1)|)
constexpr std::array<std::uint32_t, 64> kSines = {
    0xd76aa478u, 0xe8c7b756u, 0x242070dbu, 0xc1bdceeeu, 0xf57c0fafu, 0x4787c62au, 0xa8304613u,
    0xfd469501u, 0x698098d8u, 0x8b44f7afu, 0xffff5bb1u, 0x895cd7beu, 0x6b901122u, 0xfd987193u,
    0xa679438eu, 0x49b40821u, 0xf61e2562u, 0xc040b340u, 0x265e5a51u, 0xe9b6c7aau, 0xd62f105du,
    0x02441453u, 0xd8a1e681u, 0xe7d3fbc8u, 0x21e1cde6u, 0xc33707d6u, 0xf4d50d87u, 0x455a14edu,
    0xa9e3e905u, 0xfcefa3f8u, 0x676f02d9u, 0x8d2a4c8au, 0xfffa3942u, 0x8771f681u, 0x6d9d6122u,
    0xfde5380cu, 0xa4beea44u, 0x4bdecfa9u, 0xf6bb4b60u, 0xbebfbc70u, 0x289b7ec6u, 0xeaa127fau,
    0xd4ef3085u, 0x04881d05u, 0xd9d4d039u, 0xe6db99e5u, 0x1fa27cf8u, 0xc4ac5665u, 0xf4292244u,
    0x432aff97u, 0xab9423a7u, 0xfc93a039u, 0x655b59c3u, 0x8f0ccc92u, 0xffeff47du, 0x85845dd1u,
    0x6fa87e4fu, 0xfe2ce6e0u, 0xa3014314u, 0x4e0811a1u, 0xf7537e82u, 0xbd3af235u, 0x2ad7d2bbu,
    0xeb86d391u,
};

using Words = std::array<std::uint32_t, 4>;

// Step i of a round; it takes word (first + i * stride) % 16 of the block.
template <int round, int first, int stride, int i, class Mix>
inline void step(Words& s, const char* block, const std::array<int, 4>& shifts, Mix mix) {
  constexpr auto at = [](int k) { return static_cast<std::size_t>((k - i) & 3); };
  std::uint32_t word;
  std::memcpy(&word, block + 4 * ((first + i * stride) % 16), 4);
  const std::uint32_t sum =
      s[at(0)] + mix(s[at(1)], s[at(2)], s[at(3)]) + word + kSines[round * 16 + i];
  s[at(0)] = s[at(1)] + std::rotl(sum, shifts[i % 4]);
}

template <int round, int first, int stride, class Mix>
inline void turn(Words& s, const char* block, const std::array<int, 4>& shifts, Mix mix) {
  [&]<int... i>(std::integer_sequence<int, i...>) {
    (step<round, first, stride, i>(s, block, shifts, mix), ...);
  }
  (std::make_integer_sequence<int, 16>());
}

}  // namespace

void Md5::take(const char* block) {
  static_assert(std::endian::native == std::endian::little);
  using U = std::uint32_t;
  Words s = state_;
  turn<0, 0, 1>(s, block, {7, 12, 17, 22}, [](U b, U c, U d) { return d ^ (b & (c ^ d)); });
  turn<1, 1, 5>(s, block, {5, 9, 14, 20}, [](U b, U c, U d) { return (b & d) + (c & ~d); });
  turn<2, 5, 3>(s, block, {4, 11, 16, 23}, [](U b, U c, U d) { return b ^ c ^ d; });
  turn<3, 0, 7>(s, block, {6, 10, 15, 21}, [](U b, U c, U d) { return c ^ (b | ~d); });
  for (std::size_t i = 0; i < s.size(); ++i) state_[i] += s[i];
}

void Md5::add(std::string_view bytes) {
  const auto kept = static_cast<std::size_t>(bytes_ % rest_.size());
  bytes_ += bytes.size();
  if (kept > 0) {
    const std::size_t n = std::min(rest_.size() - kept, bytes.size());
    std::memcpy(rest_.data() + kept, bytes.data(), n);
    bytes.remove_prefix(n);
    if (kept + n < rest_.size()) return;
    take(rest_.data());
  }
  for (; bytes.size() >= rest_.size(); bytes.remove_prefix(rest_.size())) take(bytes.data());
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
}

std::string Md5::finish() {
  const std::uint64_t bits = bytes_ * 8;
  std::array<char, 72> padding = {static_cast<char>(0x80)};
  const std::size_t zeros = (119 - bytes_ % 64) % 64;
  std::memcpy(padding.data() + 1 + zeros, &bits, 8);
  add({padding.data(), zeros + 9});
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint32_t word : state_) {
    for (int shift = 0; shift < 32; shift += 8) {
      text += kDigits[word >> (shift + 4) & 15];
      text += kDigits[word >> shift & 15];
    }
  }
  return text;
}

}  // namespace trainmon
