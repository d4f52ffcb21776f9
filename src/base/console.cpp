// A pipe that polls as writable takes PIPE_BUF bytes at once; RWF_NOWAIT holds against writers that
// come between. The descriptor's own flags are never touched: others share them.
#include "base/console.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <ctime>

namespace trainmon {
namespace {

// SIGPIPE of a write on this thread, while this lives, is taken back.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec at_once{};
    if (!was_pending_) sigtimedwait(&sigpipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t sigpipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

ssize_t write_some(int descriptor, std::string_view text, bool is_pipe) {
  if (is_pipe) {
    iovec piece{const_cast<char*>(text.data()), text.size()};
    const ssize_t written = ::pwritev2(descriptor, &piece, 1, -1, RWF_NOWAIT);
    if (written >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)) return written;
  }
  return ::write(descriptor, text.data(), text.size());
}

}  // namespace

bool write_at_once(int descriptor, std::string_view text) noexcept {
  struct stat status {};
  if (descriptor < 0 || ::fstat(descriptor, &status) != 0) return false;
  const NoSigpipe no_sigpipe;
  while (!text.empty()) {
    pollfd ready{descriptor, POLLOUT, 0};
    if (::poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0 ||
        (ready.revents & (POLLERR | POLLNVAL)) != 0) {
      return false;
    }
    const std::string_view piece = text.substr(0, std::min<std::size_t>(text.size(), PIPE_BUF));
    const ssize_t written = write_some(descriptor, piece, S_ISFIFO(status.st_mode));
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace trainmon
