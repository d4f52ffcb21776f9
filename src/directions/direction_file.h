// The signs of one tensor, as bits, whichever way a file holds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/sign_file.h"

namespace trainmon {

// A `.npy` or a `.sign`. The `.npy` is of bools, or of signs as int8 (-1, 0, 1), and a block is
// read at a time. The `.sign` is read whole.
class DirectionFile {
 public:
  // Throws std::runtime_error that says what is wrong, without the path, and SinkError when the
  // file cannot be read.
  explicit DirectionFile(const std::filesystem::path& path);

  const std::vector<std::int64_t>& sizes() const { return sizes_; }
  std::int64_t count() const { return count_; }
  int planes() const;
  // Elements are in the order of columns, not of rows.
  bool is_fortran() const { return is_fortran_; }
  // Reads all and puts it into the order of rows; 1 bit per element is kept.
  void put_in_rows();

  // The elements from `first` (a multiple of 64) on, as many as `words` has bits. Element first +
  // i is in bit i % 64 of word i / 64. Bits beyond the last element are 0.
  void read(int plane, std::int64_t first, std::span<std::uint64_t> words) const;

 private:
  void open_npy(const std::filesystem::path& path);
  void open_sign(const std::filesystem::path& path);
  void read_bytes(std::int64_t first, std::span<std::byte> bytes) const;

  std::filesystem::path path_;
  std::vector<std::int64_t> sizes_;
  std::int64_t count_ = 0;
  bool is_fortran_ = false;
  File file_;  // a .npy
  bool is_signed_ = false;
  std::int64_t data_offset_ = 0;
  std::string packed_;  // a .sign
  std::vector<std::span<const std::byte>> planes_;
  std::vector<std::vector<std::uint64_t>> rows_;  // [plane]: what put_in_rows() made
};

}  // namespace trainmon
