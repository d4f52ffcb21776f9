// The head of NumPy's `.npy` files (NEP 1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainmon {

// Everything before the data of a version 1.0 file in C order, as numpy.save writes it. `descr` is
// NumPy's type text, "|b1" for bool.
std::string npy_head(std::string_view descr, std::span<const std::int64_t> sizes);

struct NpyHead {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> sizes;
  std::size_t data_offset = 0;
};
// The head of a file that begins with `bytes` (versions 1.0, 2.0 and 3.0). Throws
// std::runtime_error that says what is wrong; never reads past `bytes`.
NpyHead read_npy_head(std::span<const std::byte> bytes);

}  // namespace trainmon
