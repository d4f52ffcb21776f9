// Locks of open file descriptions: looked at without taking them, so that ranks never meet a probe.
#include "pipe/rank_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/process.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

constexpr std::int64_t kMaxText = 1 << 16;

std::string text_of(const fs::path& path) {
  try {
    return read_beginning(path, kMaxText);
  } catch (const SinkError&) {
    return "";
  }
}

struct Held {
  std::string text;  // of the file
  fs::path path;
  File file;  // changes under the mutex of the registry
  std::atomic<bool> is_anothers = false;
  std::mutex keeping;  // held by one thread that makes the file again
};

struct Registry {
  std::mutex mutex;  // held over fork(), so that the child finds it free
  std::map<fs::path, std::weak_ptr<Held>> held;
};

Registry& registry() {
  static auto* const all = new Registry;  // the writer thread may outlive statics
  static const int registered =
      pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                     [] {
                       // A child has the descriptors, too, and would keep the locks.
                       for (const auto& [path, held] : registry().held) {
                         if (const auto lock = held.lock()) lock->file.close();
                       }
                       registry().held.clear();
                       registry().mutex.unlock();
                     });
  (void)registered;
  return *all;
}

// Whether the file of a lock is the one that stands there. So it is where nobody can tell.
bool is_there(const fs::path& path, FileIdentity file) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return errno != ENOENT;
  return file == FileIdentity{status.st_dev, status.st_ino};
}

// A copy of the folder by hard links (cp -al) has the very files. What is written to one is in
// both.
bool has_other_names(const File& file) {
  struct stat status {};
  return ::fstat(file.fd(), &status) == 0 && status.st_nlink > 1;
}

// fcntl() with a lock of the whole file.
int ask(const File& file, int command, struct flock& lock) {
  if (const Failure failure = failpoint("lock.file"); failure.error != 0) {
    errno = failure.error;
    return -1;
  }
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return ::fcntl(file.fd(), command, &lock);
}

LockHolder holder_in(const json& said) {
  LockHolder holder;
  holder.pid = said.value("pid", std::int64_t{0});
  holder.host = said.value("host", "");
  holder.started = said.value("started", "");
  holder.launch = said.value("launch", "");
  holder.restart_count = said.value("restart_count", 0);
  return holder;
}

LockHolder read_holder(const std::string& text) {
  try {
    return holder_in(json::parse(text));
  } catch (const json::exception&) {  // just being written
    return {};
  }
}

// For file systems without locks.
bool lives_here(const std::string& text) {
  try {
    const json said = json::parse(text);
    const auto pid = said.value("pid", std::int64_t{0});
    const std::string ticks = said.value("ticks", "");
    return pid != getpid() && said.value("boot", "") == boot_id() && !ticks.empty() &&
           ticks == start_ticks(pid);
  } catch (const json::exception&) {
    return false;
  }
}

std::string own_text(const Identity& identity) {
  const json said = {{"pid", getpid()},
                     {"host", host_name()},
                     {"started", utc_now()},
                     {"launch", launch_of(identity)},
                     {"restart_count", identity.restart_count},
                     {"boot", boot_id()},
                     {"ticks", start_ticks(getpid())}};
  return said.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

// False where another process has it.
bool take(const File& file, const fs::path& path) {
  struct flock lock {};
  if (ask(file, F_OFD_SETLK, lock) == 0) return true;
  return errno != EAGAIN && errno != EACCES && !lives_here(text_of(path));
}

fs::path lock_path(const fs::path& rank_directory) {
  return fs::absolute(rank_directory).lexically_normal() / "lock";
}

}  // namespace

bool is_locked_here(const fs::path& rank_directory) {
  Registry& all = registry();
  const std::lock_guard guard(all.mutex);
  const auto known = all.held.find(lock_path(rank_directory));
  const std::shared_ptr<Held> held = known == all.held.end() ? nullptr : known->second.lock();
  return held != nullptr && is_there(held->path, held->file.identity());
}

std::string launch_of(const Identity& identity) {
  if (!identity.run_id.empty()) return identity.run_id;
  const char* const address = std::getenv("MASTER_ADDR");
  const char* const port = std::getenv("MASTER_PORT");
  if (address == nullptr || port == nullptr) return "";
  const std::string name = address;
  // Every machine has one of these of its own.
  const bool is_local = name == "localhost" || name.starts_with("127.") || name == "::1";
  return (is_local ? host_name() + "/" : "") + name + ":" + port;
}

std::optional<LockHolder> other_holder(const fs::path& rank_directory) {
  const fs::path path = lock_path(rank_directory);
  if (is_locked_here(rank_directory)) return std::nullopt;
  try {
    const File file = open_file(path);
    struct flock lock {};
    const bool has_locks = ask(file, F_OFD_GETLK, lock) == 0;
    const std::string text = text_of(path);
    if (has_locks ? lock.l_type == F_UNLCK : !lives_here(text)) return std::nullopt;
    return read_holder(text);
  } catch (const SinkError&) {  // nobody has been there
    return std::nullopt;
  }
}

std::shared_ptr<void> lock_rank(const fs::path& rank_directory, const Identity& identity) {
  const fs::path path = lock_path(rank_directory);
  Registry& all = registry();
  const std::lock_guard guard(all.mutex);
  const std::shared_ptr<Held> known = all.held[path].lock();
  if (known != nullptr && is_there(path, known->file.identity())) return known;
  auto held = std::make_shared<Held>();
  held->path = path;
  held->text = own_text(identity);
  try {
    held->file = open_to_share(path);
    if (!take(held->file, path)) return nullptr;
    if (has_other_names(held->file) && ::unlink(path.c_str()) == 0) {
      held->file = open_to_share(path);
      if (!take(held->file, path)) return nullptr;
    }
    if (!has_other_names(held->file) && cut_file(held->file, 0)) {
      write_at(held->file, 0, held->text, path);
    }
  } catch (const SinkError&) {
    // Who cannot lock or say so goes on: whether the directory can be used is found out there.
  }
  all.held[path] = held;
  return held;
}

bool keep_lock(const std::shared_ptr<void>& lock) {
  if (lock == nullptr) return true;
  Held& held = *static_cast<Held*>(lock.get());
  const auto is_kept = [&] {
    FileIdentity file;
    {
      const std::lock_guard guard(registry().mutex);
      if (!held.file.is_open()) return true;
      file = held.file.identity();
    }
    return is_there(held.path, file);
  };
  if (held.is_anothers) return false;
  if (is_kept()) return true;
  const std::lock_guard guard(held.keeping);
  if (held.is_anothers) return false;
  if (is_kept()) return true;
  try {
    make_directories(held.path.parent_path());
    File file = open_to_share(held.path);
    // A copy of the folder has a copy of the file.
    const std::string text = text_of(held.path);
    held.is_anothers = !take(file, held.path) || (!text.empty() && text != held.text);
    if (held.is_anothers) return false;
    if (text.empty() && !has_other_names(file)) write_at(file, 0, held.text, held.path);
    const std::lock_guard swap(registry().mutex);
    std::swap(held.file, file);
  } catch (const SinkError&) {  // as where it could not be made at first
  }
  return true;
}

}  // namespace trainmon
