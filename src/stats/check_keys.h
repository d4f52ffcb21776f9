// The keys of fingerprint and sketch (stats/check.h defines both), for all that compute them. As
// vectors.h: all names are local to the file that includes this one.
#pragma once

#include <cstdint>

namespace trainmon {
namespace {

// The fingerprint takes rows of words, so many to a group, and so many groups to a block.
constexpr int kFingerprintColumns = 16;
constexpr int kFingerprintRows = 8;
constexpr int kFingerprintGroups = 16;
constexpr int kFingerprintGroup = kFingerprintRows * kFingerprintColumns;
constexpr int kFingerprintBlock = kFingerprintGroups * kFingerprintGroup;

// L[r] and H[r] are the factors of the lower and the upper half of a word in row r. They are
// primes between 2^11 and 2^12, in the order of mix64(prime). Those that are a sum of others of
// the same half, with any signs, are left out. So a group's sum over one column fits into 32
// bits. It is never 0 where the same bit, or up to two bits a half of one word, are flipped in
// any of its rows.
constexpr std::int16_t kFingerprintLower[kFingerprintRows] = {3607, 3517, 4019, 3631,
                                                              2477, 3761, 4049, 3557};
constexpr std::int16_t kFingerprintUpper[kFingerprintRows] = {2887, 3089, 4091, 3923,
                                                              2633, 3677, 3919, 4021};

constexpr int kSketchLanes = 16;
constexpr int kSketchBlock = 256;  // elements per block of the sketch
constexpr int kSketchStep = 32;    // neighbours that have one sign within a block
// Bit i is set where step i of a block is subtracted. The sketch of a constant is as long as the
// constant then, as it would be with random signs. No part of a block from its beginning cancels.
// The sign changes three times only, for each change costs.
constexpr unsigned kSketchMinus = 0b1100'0100;

// splitmix64 (Steele, Lea, Flood 2014): the state `x` stepped once, and mixed.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// K[i] of column i % 16 of group i / 16: odd, below 2^31, all distinct.
constexpr std::int32_t fingerprint_column_factor(int i) {
  return static_cast<std::int32_t>(
      mix64((std::uint64_t{1} << 63) + static_cast<std::uint64_t>(i)) >> 33 | 1);
}
// M(b): odd.
constexpr std::uint64_t fingerprint_block_factor(std::uint64_t block) {
  return mix64(block) | 1;
}
// 1.0 or -1.0: the sequence of Rudin and Shapiro. The sum of its first n terms is between 0.77
// and 2.45 sqrt(n). With a wave of any period it sums to 3.42 sqrt(n) at most. So nothing that
// repeats is lost, nor counted as more than it is. Without a branch, which nobody could foretell.
constexpr double sketch_block_sign(std::uint64_t block) {
  const auto minus = static_cast<std::uint64_t>(__builtin_parityll(block & block >> 1));
  return __builtin_bit_cast(double, std::uint64_t{0x3FF} << 52 | minus << 63);
}

}  // namespace
}  // namespace trainmon
