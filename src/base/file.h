// Files without surprises: descriptors that close, writes that are whole, links never followed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "trainmon/error.h"

namespace trainmon {

// The counter word for an errno value: no_space, no_descriptors, deleted, read_only, permission,
// file_limit, exists, link, no_memory, else io_error.
std::string_view errno_reason(int error);
// SinkError with errno's reason and "what path: message".
[[nodiscard]] SinkError file_error(int error, std::string_view what,
                                   const std::filesystem::path& path);

// Which file it is, whatever its name.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  bool operator==(const FileIdentity&) const = default;
};

// Owns one descriptor. Movable; not thread-safe. Somebody else in this process may close a
// descriptor by its number and open another file, which then has that number. What is not the
// file it was is never written to, cut or closed.
class File {
 public:
  File() = default;
  explicit File(int fd);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File() { close(); }

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  // Of the file it was opened for.
  FileIdentity identity() const { return {device_, inode_}; }
  // The descriptor is still that of the file it was.
  bool is_ours() const noexcept;
  // Forgets a descriptor that is not ours any more; true when it did.
  bool forget_lost() noexcept;
  void close() noexcept;

 private:
  int fd_ = -1;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
};

// All functions below throw SinkError; paths may hold any bytes. No descriptor is below 3: where
// standard input, output or error is closed, what others mean for these would go into our file.

inline constexpr mode_t kFileMode = 0640;      // less the umask
inline constexpr mode_t kDocumentMode = 0666;  // less the umask, of what people asked for

// A new file, for writing; an existing file or link is an error (reason "exists"). Closed on exec.
// A `mode` other than these two is the file's whatever the umask: somebody else is meant to read
// it.
File create_file(const std::filesystem::path& path, mode_t mode = kFileMode);
// Calls `work()`, and once more after `directory` was made again where somebody removed it: the
// first call threw "gone". What else it throws passes through.
void in_directory(const std::filesystem::path& directory, const std::function<void()>& work);
// Calls `make(number)`, which is to create the file of that number in `directory`. While it
// throws "exists", the next number is tried (somebody else's file is never touched). `number` is
// then the next one that may be free. Otherwise as in_directory().
void make_next_file(const std::filesystem::path& directory, int& number,
                    const std::function<void(int)>& make);
// For reading; a link at `path` is followed (readers may be given one).
File open_file(const std::filesystem::path& path);
// Writes all bytes at `offset`, over interruptions and short writes. On an error some of them may
// be in the file. The error "descriptor" when the descriptor is not ours any more.
void write_at(const File& file, std::int64_t offset, std::string_view bytes,
              const std::filesystem::path& path);
// Reads at `offset` until `size` bytes are there or the file ends; how many there are.
std::size_t read_at(const File& file, std::int64_t offset, char* bytes, std::size_t size,
                    const std::filesystem::path& path);
// Shortens the file; false where it cannot be done or the descriptor is not ours any more.
bool cut_file(const File& file, std::int64_t size) noexcept;
// Returns when what was written to the file, or the entries of the directory, would survive a power
// cut. After an error some of it may be lost for good, whatever a second call says.
void sync_file(const File& file, const std::filesystem::path& path);
void sync_directory(const std::filesystem::path& directory);
// The size in bytes, or nullopt-like -1 when the file has no name any more (deleted).
std::int64_t linked_size(const File& file, const std::filesystem::path& path);
// The whole file; an error when it is longer than `limit` bytes.
std::string read_file(const std::filesystem::path& path,
                      std::int64_t limit = std::int64_t{1} << 40);
// The same of an open file.
std::string read_file(const File& file, const std::filesystem::path& path);
// At most its first `bytes`.
std::string read_beginning(const std::filesystem::path& path, std::int64_t bytes);
// A file to append to, made with kFileMode where it is missing; never a link.
// `size` is where to write: after the last whole line of what is there.
struct Appendable {
  File file;
  std::int64_t size = 0;
  bool is_new = false;
};
Appendable open_to_append(const std::filesystem::path& path);
// The same for a file that other processes append to at the same time. Every write goes to its
// end, and what is there is left alone.
File open_to_share(const std::filesystem::path& path);
// Cuts off what follows the last `line_end` (a kill may have left part of a line); the size then.
std::int64_t cut_torn_line(const File& file, std::string_view line_end,
                           const std::filesystem::path& path);
// The directory, locked (flock) against others that ask for the same until the File is closed. It
// is not open where another has it, or where the file system has no locks.
File lock_directory(const std::filesystem::path& directory);
// Replaces `path` by a file with this content; readers see the old or the new one, never a part.
// The name during writing is `path` + ".tmp"; whatever stands there is removed first. `mode` as in
// create_file().
void write_atomically(const std::filesystem::path& path, std::string_view content,
                      mode_t mode = kFileMode);
// The same, and on the disk before the old content goes; mode kFileMode.
void replace_durably(const std::filesystem::path& path, std::string_view content);
// Writes over the content of a file, in the room that the file takes already, with spaces after
// it up to the old length. The error is "no_space" when that room is too little. For a full disk:
// readers may see a part.
void write_over(const std::filesystem::path& path, std::string_view content);
// Makes `path` and missing parents, mode 0750 (less the umask). Fine when it exists.
void make_directories(const std::filesystem::path& path);
// That a folder is a link, and to where; empty where it is none.
std::string link_text(const std::filesystem::path& folder);

}  // namespace trainmon
