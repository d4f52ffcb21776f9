// Fingerprint and sketch from their definition (src/stats/check.h), byte by byte and element by
// element; constants from the rules that src/stats/check_keys.h gives in words.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <span>
#include <vector>

namespace trainmon::test {

inline std::uint64_t splitmix64(std::uint64_t state) {
  std::uint64_t z = state + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

struct FingerprintConstants {
  std::vector<std::int64_t> lower, upper, columns;

  FingerprintConstants() {
    std::vector<std::int64_t> primes;
    for (std::int64_t p = 2049; p < 4096; ++p) {
      bool prime = true;
      for (std::int64_t d = 2; d * d <= p; ++d) prime = prime && p % d != 0;
      if (prime) primes.push_back(p);
    }
    std::ranges::sort(primes, {}, [](std::int64_t p) { return splitmix64(std::uint64_t(p)); });
    lower = take(primes);
    std::erase_if(primes, [&](std::int64_t p) { return std::ranges::count(lower, p) > 0; });
    upper = take(primes);
    for (std::uint64_t i = 0; i < 256; ++i) {
      columns.push_back(std::int64_t(splitmix64((std::uint64_t{1} << 63) + i) >> 33) | 1);
    }
  }

 private:
  // The first eight of which none is a sum of those before, with any signs.
  static std::vector<std::int64_t> take(const std::vector<std::int64_t>& primes) {
    std::vector<std::int64_t> taken;
    std::set<std::int64_t> sums = {0};
    for (const std::int64_t p : primes) {
      if (taken.size() == 8) break;
      if (sums.contains(p)) continue;
      taken.push_back(p);
      std::set<std::int64_t> more = sums;
      for (const std::int64_t sum : sums) more.insert({sum + p, sum - p});
      sums = more;
    }
    return taken;
  }
};

// `first` is the place of the first byte in the full tensor.
inline std::uint64_t fingerprint(std::span<const std::byte> bytes, std::uint64_t first) {
  static const FingerprintConstants constants;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::uint64_t at = first + i;
    const auto bits = static_cast<std::uint8_t>(bytes[i]);
    const std::int64_t value = at % 2 == 0 ? bits : static_cast<std::int8_t>(bits) * 256;
    const std::uint64_t word = at / 4;
    const std::uint64_t row = word / 16 % 8;
    const std::uint64_t group = word / 128 % 16;
    const std::uint64_t block = word / 2048;
    const std::int64_t half = (at % 4 < 2 ? constants.lower : constants.upper)[row];
    sum += static_cast<std::uint64_t>(value * half * constants.columns[group * 16 + word % 16]) *
           (splitmix64(block) | 1);
  }
  return sum;
}

struct SketchOracle {
  long double sum[16] = {};
  long double magnitude[16] = {};  // of what was summed
};

// What an element of index `i` in the full tensor counts.
inline int sketch_sign(std::uint64_t i) {
  constexpr int kSteps[] = {1, 1, -1, 1, 1, 1, -1, -1};
  int sign = kSteps[i / 32 % 8];
  for (std::uint64_t block = i / 256; block != 0; block /= 2) {
    if (block % 4 == 3) sign = -sign;  // Rudin and Shapiro: pairs of neighbouring ones
  }
  return sign;
}

inline SketchOracle sketch(std::span<const double> values, std::uint64_t first) {
  SketchOracle out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t lane = (first + i) % 16;
    out.sum[lane] += sketch_sign(first + i) * static_cast<long double>(values[i]);
    out.magnitude[lane] += std::fabs(static_cast<long double>(values[i]));
  }
  return out;
}

}  // namespace trainmon::test
