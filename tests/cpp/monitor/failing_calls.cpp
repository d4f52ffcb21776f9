// A library to preload: calls on files below one folder are written down, and chosen ones fail, do
// half of what they were asked for, or are slow.
//   FAILING_UNDER   the folder; calls on anything else are left alone
//   FAILING_RECORD  a file outside of it: a line "NAME PATH [BYTES AT]" for each call that counts
//   FAILING_FIRST, FAILING_SIZE  numbers of the calls that fail: FIRST, and SIZE of them
//   FAILING_HOW     errno:NUMBER, short, or slow:MILLISECONDS
// EINTR comes from calls that may be interrupted, and a hundred times at most; errors of fcntl()
// come twenty times at most, for SQLite spends ten seconds on a lock that it does not get, and
// never when a lock is given back, which cannot fail.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

struct Settings {
  const char* under = std::getenv("FAILING_UNDER");
  std::size_t under_size = under == nullptr ? 0 : std::strlen(under);
  int record = -1;
  long first = 0, size = 0;
  int error = 0;
  bool is_short = false;
  long slow_ms = 0;

  Settings() {
    const auto number = [](const char* name) {
      const char* const text = std::getenv(name);
      return text == nullptr ? 0L : std::atol(text);
    };
    first = number("FAILING_FIRST");
    size = number("FAILING_SIZE");
    const char* const how = std::getenv("FAILING_HOW");
    if (how != nullptr && std::strncmp(how, "errno:", 6) == 0) error = std::atoi(how + 6);
    if (how != nullptr && std::strncmp(how, "slow:", 5) == 0) slow_ms = std::atol(how + 5);
    is_short = how != nullptr && std::strcmp(how, "short") == 0;
    if (const char* const path = std::getenv("FAILING_RECORD")) {
      record = static_cast<int>(
          ::syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
    }
  }
};

const Settings& settings() {
  static const Settings all;
  return all;
}

std::atomic<long> seen{0};
std::atomic<int> interrupted{0}, refused_locks{0};

bool counts(const char* path) {
  const Settings& all = settings();
  return all.under != nullptr && std::strncmp(path, all.under, all.under_size) == 0;
}

// What should become of a call.
struct Fault {
  int error = 0;
  bool is_short = false;
};

Fault fault_of(const char* name, const char* path, bool may_be_interrupted, long bytes, long at) {
  if (!counts(path)) return {};
  const Settings& all = settings();
  const long number = ++seen;
  if (all.record >= 0) {
    char line[4400];
    const int length =
        bytes < 0 ? std::snprintf(line, sizeof line, "%s %s\n", name, path)
                  : std::snprintf(line, sizeof line, "%s %s %ld %ld\n", name, path, bytes, at);
    ::syscall(SYS_write, all.record, line, static_cast<std::size_t>(length));
  }
  if (number < all.first || number - all.first >= all.size) return {};
  if (all.slow_ms > 0) {
    const timespec time{all.slow_ms / 1000, all.slow_ms % 1000 * 1000000};
    ::nanosleep(&time, nullptr);
  }
  if (all.error == EINTR && (!may_be_interrupted || ++interrupted > 100)) return {};
  return {all.error, all.is_short};
}

Fault fault_of_path(const char* name, const char* path, bool may_be_interrupted = false) {
  return path == nullptr ? Fault{} : fault_of(name, path, may_be_interrupted, -1, 0);
}

Fault fault_of_fd(const char* name, int fd, bool may_be_interrupted = false, long bytes = -1,
                  long at = 0) {
  const int error = errno;
  char link[64], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const long length = ::syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
  errno = error;
  if (length < 0) return {};
  path[length] = '\0';
  return fault_of(name, path, may_be_interrupted, bytes, at);
}

// Fails with the error; else calls the next definition.
template <typename Call, typename... Arguments>
auto go_on(const Fault& fault, const char* name, Arguments... arguments)
    -> decltype(Call()(arguments...)) {
  if (fault.error != 0) {
    errno = fault.error;
    return static_cast<decltype(Call()(arguments...))>(-1);
  }
  return reinterpret_cast<Call>(::dlsym(RTLD_NEXT, name))(arguments...);
}

std::size_t part_of(const Fault& fault, std::size_t size) {
  return fault.is_short ? std::max<std::size_t>(size / 2, 1) : size;
}

}  // namespace

#define TRAINMON_SHOWN extern "C" __attribute__((visibility("default")))

#define TRAINMON_OPEN(name)                                                                      \
  TRAINMON_SHOWN int name(const char* path, int flags, ...) {                                    \
    va_list rest;                                                                                \
    va_start(rest, flags);                                                                       \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0;              \
    va_end(rest);                                                                                \
    return go_on<int (*)(const char*, int, ...)>(fault_of_path("open", path, true), #name, path, \
                                                 flags, mode);                                   \
  }
TRAINMON_OPEN(open)
TRAINMON_OPEN(open64)

TRAINMON_SHOWN ssize_t write(int fd, const void* bytes, size_t size) {
  const Fault fault = fault_of_fd("write", fd, true, static_cast<long>(size), -1);
  return go_on<ssize_t (*)(int, const void*, size_t)>(fault, "write", fd, bytes,
                                                      part_of(fault, size));
}

#define TRAINMON_PWRITE(name)                                                             \
  TRAINMON_SHOWN ssize_t name(int fd, const void* bytes, size_t size, off_t at) {         \
    const Fault fault = fault_of_fd("pwrite", fd, true, static_cast<long>(size), at);     \
    return go_on<ssize_t (*)(int, const void*, size_t, off_t)>(fault, #name, fd, bytes,   \
                                                               part_of(fault, size), at); \
  }
TRAINMON_PWRITE(pwrite)
TRAINMON_PWRITE(pwrite64)

#define TRAINMON_PREAD(name)                                                        \
  TRAINMON_SHOWN ssize_t name(int fd, void* bytes, size_t size, off_t at) {         \
    const Fault fault = fault_of_fd("pread", fd, true);                             \
    return go_on<ssize_t (*)(int, void*, size_t, off_t)>(fault, #name, fd, bytes,   \
                                                         part_of(fault, size), at); \
  }
TRAINMON_PREAD(pread)
TRAINMON_PREAD(pread64)

TRAINMON_SHOWN int fsync(int fd) {
  return go_on<int (*)(int)>(fault_of_fd("fsync", fd, true), "fsync", fd);
}
TRAINMON_SHOWN int fdatasync(int fd) {
  return go_on<int (*)(int)>(fault_of_fd("fdatasync", fd, true), "fdatasync", fd);
}
TRAINMON_SHOWN int ftruncate(int fd, off_t size) {
  return go_on<int (*)(int, off_t)>(fault_of_fd("ftruncate", fd, true, size, 0), "ftruncate", fd,
                                    size);
}
TRAINMON_SHOWN int ftruncate64(int fd, off64_t size) {
  return go_on<int (*)(int, off64_t)>(fault_of_fd("ftruncate", fd, true, size, 0), "ftruncate64",
                                      fd, size);
}
TRAINMON_SHOWN int posix_fallocate(int fd, off_t from, off_t size) {
  const Fault fault = fault_of_fd("posix_fallocate", fd, true);
  if (fault.error != 0) return fault.error;
  return go_on<int (*)(int, off_t, off_t)>(fault, "posix_fallocate", fd, from, size);
}
TRAINMON_SHOWN int flock(int fd, int how) {
  return go_on<int (*)(int, int)>(fault_of_fd("flock", fd, true), "flock", fd, how);
}
TRAINMON_SHOWN int fchmod(int fd, mode_t mode) {
  return go_on<int (*)(int, mode_t)>(fault_of_fd("fchmod", fd), "fchmod", fd, mode);
}
#define TRAINMON_FSTAT(name, type)                                                         \
  TRAINMON_SHOWN int name(int fd, struct type* status) {                                   \
    return go_on<int (*)(int, struct type*)>(fault_of_fd("fstat", fd), #name, fd, status); \
  }
TRAINMON_FSTAT(fstat, stat)
TRAINMON_FSTAT(fstat64, stat64)

#define TRAINMON_MMAP(name)                                                                     \
  TRAINMON_SHOWN void* name(void* at, size_t size, int rights, int flags, int fd, off_t from) { \
    const Fault fault = fd >= 0 ? fault_of_fd("mmap", fd) : Fault{};                            \
    if (fault.error != 0) {                                                                     \
      errno = fault.error;                                                                      \
      return MAP_FAILED;                                                                        \
    }                                                                                           \
    return reinterpret_cast<void*>(::syscall(SYS_mmap, at, size, rights, flags, fd, from));     \
  }
TRAINMON_MMAP(mmap)
TRAINMON_MMAP(mmap64)

#define TRAINMON_FCNTL(name)                                                           \
  TRAINMON_SHOWN int name(int fd, int command, ...) {                                  \
    va_list rest;                                                                      \
    va_start(rest, command);                                                           \
    void* const argument = va_arg(rest, void*);                                        \
    va_end(rest);                                                                      \
    const bool is_unlock =                                                             \
        command == F_SETLK && static_cast<struct flock*>(argument)->l_type == F_UNLCK; \
    Fault fault = is_unlock ? Fault{} : fault_of_fd("fcntl", fd);                      \
    if (fault.error != 0 && ++refused_locks > 20) fault = {};                          \
    return go_on<int (*)(int, int, ...)>(fault, #name, fd, command, argument);         \
  }
TRAINMON_FCNTL(fcntl)
TRAINMON_FCNTL(fcntl64)

TRAINMON_SHOWN int rename(const char* from, const char* to) {
  return go_on<int (*)(const char*, const char*)>(fault_of_path("rename", to), "rename", from, to);
}
TRAINMON_SHOWN int unlink(const char* path) {
  return go_on<int (*)(const char*)>(fault_of_path("unlink", path), "unlink", path);
}
TRAINMON_SHOWN int remove(const char* path) {
  return go_on<int (*)(const char*)>(fault_of_path("remove", path), "remove", path);
}
TRAINMON_SHOWN int mkdir(const char* path, mode_t mode) {
  return go_on<int (*)(const char*, mode_t)>(fault_of_path("mkdir", path), "mkdir", path, mode);
}
#define TRAINMON_STAT(name, as, type)                                                      \
  TRAINMON_SHOWN int name(const char* path, struct type* status) {                         \
    return go_on<int (*)(const char*, struct type*)>(fault_of_path(as, path), #name, path, \
                                                     status);                              \
  }
TRAINMON_STAT(stat, "stat", stat)
TRAINMON_STAT(stat64, "stat", stat64)
TRAINMON_STAT(lstat, "lstat", stat)
TRAINMON_STAT(lstat64, "lstat", stat64)
TRAINMON_SHOWN int access(const char* path, int how) {
  return go_on<int (*)(const char*, int)>(fault_of_path("access", path), "access", path, how);
}
TRAINMON_SHOWN int statvfs(const char* path, struct statvfs* status) {
  return go_on<int (*)(const char*, struct statvfs*)>(fault_of_path("statvfs", path), "statvfs",
                                                      path, status);
}
TRAINMON_SHOWN int statfs(const char* path, struct statfs* status) {
  return go_on<int (*)(const char*, struct statfs*)>(fault_of_path("statfs", path), "statfs", path,
                                                     status);
}
TRAINMON_SHOWN DIR* opendir(const char* path) {
  const Fault fault = fault_of_path("opendir", path);
  if (fault.error != 0) {
    errno = fault.error;
    return nullptr;
  }
  return reinterpret_cast<DIR* (*)(const char*)>(::dlsym(RTLD_NEXT, "opendir"))(path);
}
