// Thin wrappers over POSIX calls; every one that can fail in the field is a failpoint site.
#include "base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/failpoint.h"

namespace trainmon {
namespace {

constexpr mode_t kDirectoryMode = 0750;

// Numbers 0 to 2 are what the rest of the process takes for standard input, output and error.
int open_above_standard(const std::filesystem::path& path, int flags, mode_t mode = kFileMode) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  ::close(fd);
  errno = error;
  return moved;
}

int open_retrying(const std::filesystem::path& path, int flags, mode_t mode = kFileMode) {
  if (const Failure failure = failpoint("file.open"); failure.error != 0) {
    errno = failure.error;
    return -1;
  }
  return open_above_standard(path, flags, mode);
}

ssize_t write_once(int fd, const char* data, std::size_t size, std::int64_t offset) {
  const Failure failure = failpoint("file.write");
  if (failure.error != 0) {
    errno = failure.error;
    return -1;
  }
  return ::pwrite(fd, data, std::min(size, failure.limit), offset);
}

}  // namespace

std::string_view errno_reason(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "no_space";
    case EMFILE:
    case ENFILE:
      return "no_descriptors";
    case ENOENT:
    case ENOTDIR:
    case ESTALE:
      return "gone";
    case EROFS:
      return "read_only";
    case EACCES:
    case EPERM:
      return "permission";
    case EFBIG:
      return "file_limit";
    case EEXIST:
      return "exists";
    case ELOOP:
      return "link";
    case ENOMEM:
      return "no_memory";
    default:
      return "io_error";
  }
}

SinkError file_error(int error, std::string_view what, const std::filesystem::path& path) {
  return {std::string(errno_reason(error)),
          std::string(what) + " " + path.string() + ": " + std::generic_category().message(error)};
}

File::File(int fd) : fd_(fd) {
  struct stat status {};
  if (fd_ < 0 || ::fstat(fd_, &status) != 0) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), device_(other.device_), inode_(other.inode_) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    device_ = other.device_;
    inode_ = other.inode_;
  }
  return *this;
}

bool File::is_ours() const noexcept {
  struct stat status {};
  return fd_ >= 0 && ::fstat(fd_, &status) == 0 && status.st_dev == device_ &&
         status.st_ino == inode_;
}

bool File::forget_lost() noexcept {
  if (fd_ < 0 || is_ours()) return false;
  fd_ = -1;
  return true;
}

void File::close() noexcept {
  // Not retried on EINTR: Linux has released the descriptor by then.
  if (!forget_lost() && fd_ >= 0) ::close(std::exchange(fd_, -1));
}

File create_file(const std::filesystem::path& path, mode_t mode) {
  const int fd = open_retrying(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
  if (fd < 0) throw file_error(errno, "cannot create", path);
  File file(fd);
  if (file.identity() == FileIdentity{}) {  // fstat() failed: nothing could ever be written to it
    const int error = errno;
    ::close(fd);
    ::unlink(path.c_str());
    throw file_error(error, "cannot create", path);
  }
  const bool is_less_umask = mode == kFileMode || mode == kDocumentMode;
  if (!is_less_umask && ::fchmod(fd, mode) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    throw file_error(error, "cannot set the mode of", path);
  }
  return file;
}

void in_directory(const std::filesystem::path& directory, const std::function<void()>& work) {
  try {
    work();
  } catch (const SinkError& error) {
    if (error.reason() != "gone") throw;
    make_directories(directory);
    work();
  }
}

void make_next_file(const std::filesystem::path& directory, int& number,
                    const std::function<void(int)>& make) {
  constexpr int kAttempts = 1000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    try {
      in_directory(directory, [&] { make(number); });
      ++number;
      return;
    } catch (const SinkError& error) {
      if (error.reason() != "exists") throw;
      ++number;
    }
  }
  throw SinkError("exists", "no free name for the next file in " + directory.string());
}

Appendable open_to_append(const std::filesystem::path& path) {
  Appendable found;
  int fd = open_retrying(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW);
  found.is_new = fd >= 0;
  if (fd < 0 && errno == EEXIST) fd = open_retrying(path, O_RDWR | O_NOFOLLOW);
  if (fd < 0) throw file_error(errno, "cannot open", path);
  found.file = File(fd);
  found.size = cut_torn_line(found.file, "\n", path);
  return found;
}

File open_to_share(const std::filesystem::path& path) {
  const int fd = open_retrying(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW);
  if (fd < 0) throw file_error(errno, "cannot open", path);
  return File(fd);
}

std::int64_t cut_torn_line(const File& file, std::string_view line_end,
                           const std::filesystem::path& path) {
  constexpr std::int64_t kMostAtOnce = 1 << 20;
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) throw file_error(errno, "cannot stat", path);
  std::int64_t size = 0;  // after the last whole line
  std::string block;
  std::int64_t at_once = 256;  // most often the last bytes are all that it takes
  for (std::int64_t end = status.st_size; end > 0;) {
    const std::int64_t begin = std::max<std::int64_t>(end - at_once, 0);
    at_once = std::min(at_once * 16, kMostAtOnce);
    block.resize(static_cast<std::size_t>(end - begin));
    const ssize_t got = ::pread(file.fd(), block.data(), block.size(), begin);
    if (got < 0) throw file_error(errno, "cannot read", path);
    block.resize(static_cast<std::size_t>(got));
    const std::size_t at = block.rfind(line_end);
    if (at != std::string::npos) {
      size = begin + static_cast<std::int64_t>(at + line_end.size());
      break;
    }
    // A line end may lie across two blocks.
    end = begin == 0 ? 0 : begin + static_cast<std::int64_t>(line_end.size()) - 1;
  }
  if (size < status.st_size && ::ftruncate(file.fd(), size) != 0) {
    throw file_error(errno, "cannot cut", path);
  }
  return size;
}

File open_file(const std::filesystem::path& path) {
  // Not blocking, so that a pipe someone left in a run directory cannot hang a reader.
  const int fd = open_retrying(path, O_RDONLY | O_NONBLOCK);
  if (fd < 0) throw file_error(errno, "cannot open", path);
  File file(fd);
  struct stat status {};
  // A directory opens, and claims to be as long as a file can be.
  if (::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
    throw file_error(EISDIR, "cannot open", path);
  }
  return file;
}

void write_at(const File& file, std::int64_t offset, std::string_view bytes,
              const std::filesystem::path& path) {
  if (!file.is_ours()) {
    throw SinkError("descriptor", "somebody closed the descriptor of " + path.string() +
                                      ", or has another file in its place");
  }
  while (!bytes.empty()) {
    const ssize_t written = write_once(file.fd(), bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw file_error(errno, "cannot write", path);
    if (written == 0) throw file_error(ENOSPC, "cannot write", path);
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset += written;
  }
}

std::size_t read_at(const File& file, std::int64_t offset, char* bytes, std::size_t size,
                    const std::filesystem::path& path) {
  std::size_t filled = 0;
  while (filled < size) {
    const ssize_t got = ::pread(file.fd(), bytes + filled, size - filled,
                                offset + static_cast<std::int64_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw file_error(errno, "cannot read", path);
    if (got == 0) break;  // shortened while being read
    filled += static_cast<std::size_t>(got);
  }
  return filled;
}

bool cut_file(const File& file, std::int64_t size) noexcept {
  return file.is_ours() && ::ftruncate(file.fd(), size) == 0;
}

void sync_file(const File& file, const std::filesystem::path& path) {
  if (const Failure failure = failpoint("file.sync"); failure.error != 0) {
    throw file_error(failure.error, "cannot sync", path);
  }
  int done = 0;
  do {
    done = ::fdatasync(file.fd());
  } while (done != 0 && errno == EINTR);
  if (done != 0) throw file_error(errno, "cannot sync", path);
}

void sync_directory(const std::filesystem::path& directory) {
  const File file(open_above_standard(directory, O_RDONLY | O_DIRECTORY));
  if (!file.is_open()) throw file_error(errno, "cannot open", directory);
  int done = 0;
  do {
    done = ::fsync(file.fd());
  } while (done != 0 && errno == EINTR);
  if (done != 0) throw file_error(errno, "cannot sync", directory);
}

std::int64_t linked_size(const File& file, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) throw file_error(errno, "cannot stat", path);
  return status.st_nlink == 0 ? -1 : status.st_size;
}

namespace {

std::int64_t size_of(const File& file, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) throw file_error(errno, "cannot stat", path);
  if (!S_ISREG(status.st_mode)) throw SinkError("io_error", path.string() + " is not a file");
  return status.st_size;
}

std::string read_bytes(const File& file, std::int64_t size, const std::filesystem::path& path) {
  std::string content(static_cast<std::size_t>(size), '\0');
  content.resize(read_at(file, 0, content.data(), content.size(), path));
  return content;
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::int64_t limit) {
  const File file = open_file(path);
  const std::int64_t size = size_of(file, path);
  if (size > limit) throw SinkError("file_limit", path.string() + " is too long");
  return read_bytes(file, size, path);
}

std::string read_beginning(const std::filesystem::path& path, std::int64_t bytes) {
  const File file = open_file(path);
  return read_bytes(file, std::min(bytes, size_of(file, path)), path);
}

std::string read_file(const File& file, const std::filesystem::path& path) {
  return read_bytes(file, size_of(file, path), path);
}

File lock_directory(const std::filesystem::path& directory) {
  File file(open_above_standard(directory, O_RDONLY | O_DIRECTORY));
  if (!file.is_open()) throw file_error(errno, "cannot open", directory);
  if (::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) file.close();
  return file;
}

namespace {

// `keep` is called with the written file, before it gets its name.
void replace(const std::filesystem::path& path, std::string_view content, mode_t mode,
             const std::function<void(const File&)>& keep) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) {
    throw file_error(errno, "cannot remove", temporary);
  }
  File file = create_file(temporary, mode);
  try {
    write_at(file, 0, content, temporary);
    keep(file);
    file.close();
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      throw file_error(errno, "cannot rename to", path);
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace

void write_atomically(const std::filesystem::path& path, std::string_view content, mode_t mode) {
  replace(path, content, mode, [](const File&) {});
}

void replace_durably(const std::filesystem::path& path, std::string_view content) {
  replace(path, content, kFileMode, [&](const File& file) { sync_file(file, path); });
  const std::filesystem::path folder = path.parent_path();
  sync_directory(folder.empty() ? "." : folder);
}

void write_over(const std::filesystem::path& path, std::string_view content) {
  // Not by open_retrying(): its failpoint stands for a disk that has no room for new files.
  const File file(open_above_standard(path, O_WRONLY | O_NOFOLLOW));
  if (!file.is_open()) throw file_error(errno, "cannot open", path);
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) throw file_error(errno, "cannot stat", path);
  const std::size_t room = static_cast<std::size_t>(status.st_blocks) * 512;  // POSIX: of 512 bytes
  if (content.size() > room) throw file_error(ENOSPC, "cannot write", path);
  std::string padded(content);
  padded.resize(std::max(padded.size(), static_cast<std::size_t>(status.st_size)), ' ');
  write_at(file, 0, padded, path);
}

std::string link_text(const std::filesystem::path& folder) {
  std::error_code unknown;
  if (!std::filesystem::is_symlink(folder, unknown)) return {};
  return folder.string() + " is a link: what is recorded goes to " +
         std::filesystem::read_symlink(folder, unknown).string();
}

void make_directories(const std::filesystem::path& path) {
  std::filesystem::path made;
  for (const auto& part : path) {
    made /= part;
    if (part.empty() || ::mkdir(made.c_str(), kDirectoryMode) == 0) continue;
    const int error = errno;
    struct stat status {};
    if (::stat(made.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) continue;
    throw file_error(error == EEXIST ? ENOTDIR : error, "cannot make directory", made);
  }
}

}  // namespace trainmon
