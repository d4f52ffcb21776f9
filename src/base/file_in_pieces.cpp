#include "base/file_in_pieces.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace trainmon {
namespace {

constexpr std::size_t kAhead = std::size_t{1} << 20;

File again(const File& open, const std::filesystem::path& path) {
  const int fd = ::fcntl(open.fd(), F_DUPFD_CLOEXEC, 3);
  if (fd < 0) throw file_error(errno, "cannot open", path);
  return File(fd);
}

}  // namespace

FileInPieces::FileInPieces(std::filesystem::path path, const File& open)
    : path_(std::move(path)), file_(again(open, path_)) {}

std::string_view FileInPieces::read(std::int64_t offset, std::size_t size) {
  const auto end = begin_ + std::ssize(buffer_);
  if (offset < begin_ || offset + static_cast<std::int64_t>(size) > end) {
    buffer_.resize(std::max(size, kAhead));
    buffer_.resize(read_at(file_, offset, buffer_.data(), buffer_.size(), path_));
    begin_ = offset;
  }
  return std::string_view(buffer_).substr(static_cast<std::size_t>(offset - begin_), size);
}

}  // namespace trainmon
