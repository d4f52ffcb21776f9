// One file of directions, whatever its bytes are: refused, or every element read once.
#pragma once

#include <bit>
#include <stdexcept>
#include <vector>

#include "directions/direction_file.h"
#include "fuzz.h"

namespace trainmon::fuzz {

inline std::int64_t count_bits(const DirectionFile& file, int plane) {
  std::int64_t bits = 0;
  std::vector<std::uint64_t> words(4);  // few, so that small files have several blocks
  for (std::int64_t at = 0; at < file.count(); at += 256) {
    file.read(plane, at, words);
    for (const std::uint64_t word : words) bits += std::popcount(word);
  }
  return bits;
}

inline void read_directions(const char* name, std::string_view bytes) {
  put(scratch() / name, bytes);
  try {
    DirectionFile file(scratch() / name);
    // An element takes a bit of the file at least.
    check(file.count() <= 8 * static_cast<std::int64_t>(bytes.size()), "no more than there is");
    check(file.planes() == 1 || file.planes() == 2, "one plane or two");
    for (int plane = 0; plane < file.planes(); ++plane) {
      const std::int64_t bits = count_bits(file, plane);
      check(bits <= file.count(), "no bit beyond the last element");
      file.put_in_rows();
      check(count_bits(file, plane) == bits, "another order has the same elements");
    }
  } catch (const std::runtime_error& error) {
    check(*error.what() != '\0', "a refusal says why");
  }
}

}  // namespace trainmon::fuzz
