// A file of which pieces are read in ascending order, through a buffer of about a megabyte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/file.h"

namespace trainmon {

class FileInPieces {
 public:
  // Throws SinkError as open_file().
  explicit FileInPieces(std::filesystem::path path)
      : path_(std::move(path)), file_(open_file(path_)) {}
  // Of a file that is open already, whatever has its name by now. Throws SinkError.
  FileInPieces(std::filesystem::path path, const File& open);

  FileIdentity identity() const { return file_.identity(); }
  // `size` bytes at `offset`, fewer where the file ends; valid until the next call. Throws
  // SinkError.
  std::string_view read(std::int64_t offset, std::size_t size);

 private:
  const std::filesystem::path path_;
  const File file_;
  std::string buffer_;
  std::int64_t begin_ = 0;  // of the buffer in the file
};

}  // namespace trainmon
