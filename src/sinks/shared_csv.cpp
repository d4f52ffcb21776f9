// Lock, look, append, let go.
#include "sinks/shared_csv.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/log.h"

namespace trainmon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPause = std::chrono::microseconds(500);

bool has_no_locks(int error) {
  return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP || error == EINVAL;
}

// A file open under its lock, ready to be appended to.
class Locked {
 public:
  explicit Locked(SharedCsv& csv) : csv_(&csv) {}
  Locked(Locked&& other) noexcept = default;
  Locked& operator=(Locked&&) = delete;
  ~Locked() { unlock(); }

  void take(Clock::time_point deadline) {
    do {
      unlock();
      open();
      lock(deadline);
      size_ = linked_size(file_, csv_->path);
    } while (size_ < 0);  // somebody removed it meanwhile
    check_header();
    if (is_locked_ && size_ > 0) size_ = cut_torn_line(file_, kSharedLineEnd, csv_->path);
  }
  void append() {
    const std::string text = size_ == 0 ? csv_->header + csv_->text : csv_->text;
    try {
      write_at(file_, size_, text, csv_->path);
    } catch (...) {
      take_back();
      throw;
    }
  }

  // Without the lock lines of others may follow ours, which stay then.
  void take_back() {
    if (is_locked_ && !cut_file(file_, size_)) {
      log_line_limited("shared_csv.undo", "cannot take back rows from " + csv_->path.string());
    }
  }

 private:
  void open() {
    in_directory(csv_->path.parent_path(), [&] { file_ = open_to_share(csv_->path); });
  }

  void lock(Clock::time_point deadline) {
    int error = failpoint("shared_csv.lock").error;
    while (error == 0 && ::flock(file_.fd(), LOCK_EX | LOCK_NB) != 0) {
      error = errno == EINTR ? 0 : errno;
      if (error != EWOULDBLOCK) continue;
      if (Clock::now() > deadline) {
        throw SinkError("locked", "another process keeps the lock of " + csv_->path.string());
      }
      std::this_thread::sleep_for(kPause);
      error = 0;
    }
    is_locked_ = error == 0;
    if (is_locked_) return;
    if (!has_no_locks(error)) throw file_error(error, "cannot lock", csv_->path);
    log_line_limited("shared_csv.no_locks",
                     csv_->path.string() +
                         " is on a file system without locks: a kill may leave a "
                         "torn line",
                     86400.0);
  }

  // By name: a process forked meanwhile has the descriptor, too, and would keep the lock.
  void unlock() noexcept {
    if (file_.is_open() && is_locked_) ::flock(file_.fd(), LOCK_UN);
    is_locked_ = false;
    file_.close();
  }

  // What is there must begin as we would begin it; a killed writer may have left part of that.
  void check_header() {
    const std::string& header = csv_->header;
    std::string found(std::min(static_cast<std::size_t>(size_), header.size()), '\0');
    const ssize_t got = ::pread(file_.fd(), found.data(), found.size(), 0);
    if (got < 0) throw file_error(errno, "cannot read", csv_->path);
    found.resize(static_cast<std::size_t>(got));
    if (!header.starts_with(found)) {
      const std::string line = header.substr(0, header.size() - kSharedLineEnd.size());
      const std::string why =
          found.starts_with(line + '\n')
              ? " is there and its lines end with LF, not CRLF: convert it"
              : " is there and does not begin with the line \"" + line + "\": move it away";
      throw SinkError("other_columns", csv_->path.string() + why + ", or name another file");
    }
    if (is_locked_ && found.size() < header.size() && size_ > 0) {
      if (!cut_file(file_, 0)) throw file_error(errno, "cannot cut", csv_->path);
      size_ = 0;
    }
  }

  SharedCsv* csv_;
  File file_;
  bool is_locked_ = false;
  std::int64_t size_ = 0;
};

}  // namespace

void append_together(std::span<SharedCsv> files, std::chrono::nanoseconds patience) {
  const Clock::time_point deadline = Clock::now() + patience;
  std::vector<SharedCsv*> order;
  for (SharedCsv& file : files) order.push_back(&file);
  // One order for all processes, so that no two wait for each other.
  std::ranges::sort(order, {}, &SharedCsv::path);
  std::vector<Locked> locked;
  locked.reserve(order.size());
  for (SharedCsv* file : order) locked.emplace_back(*file).take(deadline);
  std::size_t done = 0;
  try {
    for (; done < locked.size(); ++done) locked[done].append();
  } catch (...) {
    for (std::size_t i = 0; i < done; ++i) locked[i].take_back();
    throw;
  }
  for (SharedCsv& file : files) file.text.clear();
}

}  // namespace trainmon
