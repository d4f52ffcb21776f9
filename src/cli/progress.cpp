// The bar is drawn again at most ten times a second, lines come every five seconds.
#include "cli/progress.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "cli/output.h"

namespace trainmon::cli {
namespace {

constexpr int kBarCells = 30;
std::atomic<bool> interrupted{false};

void interrupt(int signal) {
  if (interrupted.exchange(true)) ::_exit(128 + signal);
}

bool draws_bars() {
  const char* terminal = std::getenv("TERM");
  return ::isatty(2) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

}  // namespace

Progress::Progress(std::string what, const Context& context)
    : what_(std::move(what)),
      is_quiet_(context.quiet),
      is_terminal_(draws_bars()),
      begin_(Clock::now()),
      next_(begin_ + (is_terminal_ ? std::chrono::milliseconds(300) : std::chrono::seconds(5))) {}

Progress::~Progress() {
  if (has_bar_) std::fputs("\r\x1b[K", stderr);
}

void Progress::show(std::int64_t done, std::int64_t total) {
  if (is_quiet_) return;
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + (is_terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(5));
  const double share =
      total <= 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double left = share > 0.0 ? seconds / share - seconds : 0.0;
  const double megabytes = static_cast<double>(done) / 1e6;
  if (!is_terminal_) {
    std::fprintf(stderr, "%s: %.0f %%, %.0f MB, about %.0f s left\n", what_.c_str(), 100.0 * share,
                 megabytes, left);
    return;
  }
  has_bar_ = true;
  const int cells = static_cast<int>(share * kBarCells);
  std::string bar(static_cast<std::size_t>(cells), '#');
  bar.resize(kBarCells, '.');
  std::fprintf(stderr, "\r%s [%s] %3.0f %%  %.0f MB  %.0f s left\x1b[K", what_.c_str(), bar.c_str(),
               100.0 * share, megabytes, left);
}

Interruptible::Interruptible() {
  interrupted = false;
  struct sigaction action {};
  action.sa_handler = interrupt;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

Interruptible::~Interruptible() {
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
}

bool Interruptible::asked() {
  return interrupted;
}

}  // namespace trainmon::cli
