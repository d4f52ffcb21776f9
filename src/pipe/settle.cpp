// Whoever waits for the writer thread.
#include <algorithm>
#include <thread>

#include "pipe/pipe.h"

namespace trainmon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(100);  // between two questions whether to wait on

}  // namespace

bool Pipe::settle(std::chrono::nanoseconds timeout, const std::function<bool()>& goes_on) {
  if (std::this_thread::get_id() == writer_.load()) return false;
  const std::uint64_t mine = settle_asked_.fetch_add(1, std::memory_order_acq_rel) + 1;
  queue_.wake();
  const auto deadline = Clock::now() + timeout;
  const auto is_over = [&] { return finished_ || abandoned_ || settle_done_ >= mine; };
  std::unique_lock lock(account_mutex_);
  while (!finished_changed_.wait_until(lock, std::min(deadline, Clock::now() + kLook), is_over)) {
    if (Clock::now() >= deadline) return false;
    lock.unlock();
    if (!goes_on()) return false;
    lock.lock();
  }
  return !abandoned_;
}

bool Pipe::flush(std::chrono::nanoseconds timeout, const std::function<bool()>& goes_on) {
  const std::int64_t before = losses();
  queue_.send_carry();
  if (!settle(timeout, goes_on) || queue_.carries() || losses() != before) return false;
  const std::lock_guard lock(account_mutex_);
  return std::ranges::none_of(outlets_, &Outlet::degraded);
}

// Failed calls of sinks, and rows that were given up before them.
std::int64_t Pipe::losses() const {
  std::int64_t lost = beyond_series_;
  for (const auto& [reason, rows] : queue_.dropped()) lost += rows;
  const std::lock_guard lock(account_mutex_);
  return lost + failures_;
}

void Pipe::settled(std::uint64_t asked) {
  if (!pending_.empty() || settle_done_ >= asked) return;
  flush_sinks();
  {
    const std::lock_guard lock(account_mutex_);
    settle_done_ = asked;
  }
  finished_changed_.notify_all();
}

}  // namespace trainmon
