// Faults below SQLite: its system calls pass through failpoints sqlite.write, sqlite.fsync and
// sqlite.truncate.
#pragma once

#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/failpoint.h"

namespace trainmon {

inline void install_sqlite_faults() {
  using Call = sqlite3_syscall_ptr;
  sqlite3_initialize();
  sqlite3_vfs* vfs = sqlite3_vfs_find(nullptr);
  static const auto is_refused = [](const Failure& failure) {
    if (failure.error != 0) errno = failure.error;
    return failure.error != 0;
  };
  ssize_t (*write_some)(int, const void*, size_t) = [](int fd, const void* data, size_t size) {
    const Failure failure = failpoint("sqlite.write");
    if (is_refused(failure)) return ssize_t{-1};
    return ::write(fd, data, std::min(size, failure.limit));
  };
  ssize_t (*pwrite_some)(int, const void*, size_t, off_t) = [](int fd, const void* data,
                                                               size_t size, off_t at) {
    const Failure failure = failpoint("sqlite.write");
    if (is_refused(failure)) return ssize_t{-1};
    return ::pwrite(fd, data, std::min(size, failure.limit), at);
  };
  int (*truncate_file)(int, off_t) = [](int fd, off_t size) {
    return is_refused(failpoint("sqlite.truncate")) ? -1 : ::ftruncate(fd, size);
  };
  vfs->xSetSystemCall(vfs, "write", reinterpret_cast<Call>(write_some));
  vfs->xSetSystemCall(vfs, "pwrite", reinterpret_cast<Call>(pwrite_some));
  vfs->xSetSystemCall(vfs, "pwrite64", reinterpret_cast<Call>(pwrite_some));
  vfs->xSetSystemCall(vfs, "ftruncate", reinterpret_cast<Call>(truncate_file));
}

}  // namespace trainmon
