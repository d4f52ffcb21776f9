// Results in order, made by several threads ahead of whoever takes them.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace trainmon {

// make(0), make(1), ... make(count - 1), each once, on at most `threads` threads, of which that of
// next() is one. So many results wait at most. The order, and what was taken before make() throws,
// are those of one thread, whatever their number.
template <typename Result>
class MadeAhead {
 public:
  MadeAhead(std::size_t count, unsigned threads, std::function<Result(std::size_t)> make)
      : count_(count), most_(std::max(threads, 1u)), make_(std::move(make)) {
    const std::size_t workers = std::min<std::size_t>(most_, count) - (count > 0 ? 1 : 0);
    try {
      for (std::size_t i = 0; i < workers; ++i) workers_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      // No more threads to be had: those there are make it all.
    }
  }
  // Waits for what is being made.
  ~MadeAhead() {
    {
      const std::lock_guard lock(mutex_);
      is_ended_ = true;
    }
    changed_.notify_all();
  }
  MadeAhead(const MadeAhead&) = delete;
  MadeAhead& operator=(const MadeAhead&) = delete;

  // nullopt after the last one. Rethrows what make() threw, at its place in the order. One thread.
  std::optional<Result> next() {
    std::unique_lock lock(mutex_);
    if (slots_.empty() && begun_ == count_) return std::nullopt;
    while (slots_.empty() || !slots_.front().is_made) {
      if (can_begin()) {
        make_one(lock);
      } else {
        changed_.wait(lock);
      }
    }
    if (slots_.front().failure) std::rethrow_exception(slots_.front().failure);
    std::optional<Result> result = std::move(slots_.front().result);
    slots_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return result;
  }

 private:
  struct Slot {
    std::optional<Result> result;
    std::exception_ptr failure;
    bool is_made = false;
  };

  bool can_begin() const { return begun_ < count_ && slots_.size() < most_ && !has_failed_; }
  void make_one(std::unique_lock<std::mutex>& lock) {
    const std::size_t number = begun_++;
    Slot& slot = slots_.emplace_back();  // its address stays, whatever is put in and taken out
    lock.unlock();
    try {
      slot.result = make_(number);
    } catch (...) {
      slot.failure = std::current_exception();
    }
    lock.lock();
    slot.is_made = true;
    has_failed_ = has_failed_ || slot.failure;
    changed_.notify_all();
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock,
                    [this] { return is_ended_ || has_failed_ || begun_ == count_ || can_begin(); });
      if (!can_begin() || is_ended_) return;
      make_one(lock);
    }
  }

  const std::size_t count_;
  const std::size_t most_;
  const std::function<Result(std::size_t)> make_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slot> slots_;  // begun and not taken
  std::size_t begun_ = 0;
  bool has_failed_ = false;
  bool is_ended_ = false;
  std::vector<std::jthread> workers_;  // ends first
};

}  // namespace trainmon
