// By carry-less multiplication where the processor has it (Gopal et al. 2009, "Fast CRC computation
// for generic polynomials using PCLMULQDQ"), else eight bytes a turn by eight tables.
#include "base/crc32.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/cpu.h"
#include "base/crc_tables.h"

namespace trainmon {
namespace {

// Polynomials over GF(2) modulo the generator, bit 31 the constant term.
constexpr std::uint32_t kGenerator = 0xEDB88320u;

constexpr CrcTables kCrc32Tables = crc_tables(kGenerator);

constexpr std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t sum = 0;
  for (; a != 0; a <<= 1) {
    if ((a & 0x80000000u) != 0) sum ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kGenerator : 0u);
  }
  return sum;
}

// x^(8 bytes)
constexpr std::uint32_t shift_by(std::uint64_t bytes) {
  std::uint32_t power = 0x80000000u;   // 1
  std::uint32_t square = 0x00800000u;  // x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) power = product(power, square);
    square = product(square, square);
  }
  return power;
}

#if defined(__x86_64__)
// The halves of a register are multiplied by these to move it on by `bytes`. The lower half
// stands eight bytes further from the end than the upper one. The other four bytes are where a
// factor of 32 bits lies in its half. The shift is there because the product of two reflected
// numbers comes out one bit too low.
struct Factors {
  long long lower;
  long long upper;
};
constexpr Factors factors_for(std::uint64_t bytes) {
  return {static_cast<long long>(shift_by(bytes + 4)) << 1,
          static_cast<long long>(shift_by(bytes - 4)) << 1};
}
constexpr Factors kBy64 = factors_for(64);
constexpr Factors kBy16 = factors_for(16);

__attribute__((target("pclmul"))) inline __m128i move_on(__m128i x, __m128i by, const char* next) {
  const __m128i data = _mm_loadu_si128(reinterpret_cast<const __m128i*>(next));
  return _mm_xor_si128(
      data, _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)));
}

// At least 64 bytes. Sixteen bytes that have the same remainder take the place of all before them.
__attribute__((target("pclmul"))) std::uint32_t crc32_clmul(std::string_view bytes,
                                                            std::uint32_t before) {
  const __m128i by64 = _mm_set_epi64x(kBy64.upper, kBy64.lower);
  const __m128i by16 = _mm_set_epi64x(kBy16.upper, kBy16.lower);
  __m128i x[4];
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes.data() + 16 * i));
  }
  x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128(static_cast<int>(~before)));
  bytes.remove_prefix(64);
  for (; bytes.size() >= 64; bytes.remove_prefix(64)) {
    for (int i = 0; i < 4; ++i) x[i] = move_on(x[i], by64, bytes.data() + 16 * i);
  }
  char rest[16];
  for (int i = 1; i < 4; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), x[i]);
    x[0] = move_on(x[0], by16, rest);
  }
  for (; bytes.size() >= 16; bytes.remove_prefix(16)) x[0] = move_on(x[0], by16, bytes.data());
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), x[0]);
  // The table starts from all ones, which are in these bytes already.
  return crc32_table(bytes, crc32_table({rest, sizeof rest}, ~0u));
}
#endif

}  // namespace

std::uint32_t crc32_table(std::string_view bytes, std::uint32_t before) {
  return crc_by_tables(kCrc32Tables, bytes, before);
}

std::uint32_t crc32(std::string_view bytes, std::uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = ask_cpu().pclmul;
  if (has_instruction && bytes.size() >= 64) return crc32_clmul(bytes, before);
#endif
  return crc32_table(bytes, before);
}

std::uint32_t crc32_join(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) {
  return product(first, shift_by(second_bytes)) ^ second;
}

}  // namespace trainmon
