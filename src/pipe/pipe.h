// The writer thread: takes sealed batches, lets the rules look, hands them to every sink.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pipe/batch_queue.h"
#include "pipe/latest.h"
#include "pipe/owed.h"
#include "trainmon/health.h"
#include "trainmon/rule.h"
#include "trainmon/sink.h"

namespace trainmon {

inline constexpr const char* kMaxSeries = "max_series";  // why rows of an overflow series are lost

struct PipeOptions {
  std::size_t queue_bytes = std::size_t{64} << 20;
  Overflow overflow = Overflow::drop_newest;
  std::chrono::nanoseconds flush_interval = std::chrono::seconds(1);
  std::chrono::nanoseconds device_timeout = std::chrono::seconds(30);
  std::size_t latest_bytes = std::size_t{16} << 20;
  // Stands for series beyond their limit: its rows are dropped.
  std::optional<SeriesId> overflow_series = std::nullopt;
};

// What the pipe calls, on the writer thread. None may wait for training. What one throws is counted
// and said.
struct PipeCalls {
  std::function<void()> before_flush;          // the flush interval passed: seal what is open
  std::function<void(Alert&)> annotate;        // fill in the step of an alert
  std::function<void(const Alert&)> on_alert;  // a rule found something
  std::function<void(bool last)> after_flush;  // housekeeping files
  std::function<void()> before_write = {};     // a batch goes to the sinks; may be empty
  std::function<void()> each_second = {};      // about once in one; may be empty
  // Throws SinkError where nothing may be written any more; once for a batch; may be empty.
  std::function<void()> may_write = {};
};

// A pipe owns its thread, its sinks and its rules. It never takes a lock of the training side while
// it writes, and it knows no concrete sink or rule.
class Pipe : public std::enable_shared_from_this<Pipe> {
 public:
  Pipe(PipeOptions options, RunInfo run, const SeriesTable& series,
       std::vector<std::unique_ptr<Sink>> sinks, std::vector<std::unique_ptr<Rule>> rules);

  // `keep_alive` is held by the thread: whatever the calls and the series table need. Throws
  // std::runtime_error when there is no thread to be had.
  void start(PipeCalls calls, std::shared_ptr<void> keep_alive);

  // Any thread; never waits but under Overflow::block, and there never on the writer thread itself.
  void submit(RecordBatch batch) noexcept;
  void wake() { queue_.wake(); }
  // In place of those from number `first` on, for batches of this number and later ones. Any
  // thread.
  void replace_rules(std::uint64_t batch, std::size_t first,
                     std::vector<std::unique_ptr<Rule>> rules);
  // Waits until what was submitted before has passed the sinks and these were flushed. It is
  // false after `timeout`, and at once on the writer thread itself. It is also false when
  // `goes_on`, asked ten times a second, is false.
  bool settle(
      std::chrono::nanoseconds timeout, const std::function<bool()>& goes_on = [] { return true; });
  // The same, and whether every sink has all of it. It is false, too, where one could not write,
  // where rows were given up meanwhile, and after a stop() that ran out of time.
  bool flush(std::chrono::nanoseconds timeout, const std::function<bool()>& goes_on);

  // Drains, flushes and closes within `timeout`. Afterwards everything not written counts as
  // dropped ("stop_timeout") and a thread still stuck in a write is left behind: false. Call
  // once.
  bool stop(std::chrono::nanoseconds timeout);

  // Fills sinks, alerts, errors and the queue of `health`; `produced` closes the account.
  void report(Health& health, std::int64_t produced) const;
  std::vector<Row> latest() const { return latest_.rows(); }

 private:
  struct Outlet {
    std::unique_ptr<Sink> sink;
    bool open = false;
    bool degraded = false;  // the last write failed
    bool said_to_fail = false;
    std::chrono::steady_clock::time_point sound_since;
    std::int64_t written = 0;
    std::int64_t batches = 0;
    std::map<std::string, std::int64_t> dropped;
    std::map<std::string, std::int64_t> scalars_dropped;
    std::int64_t lost_to_memory = 0;  // dropped, when there was none for their reason
    Owed owed;
  };
  // Nothing ends the writer thread: what `work` throws is counted and said, as `trouble`. False if
  // it threw.
  template <typename Work>
  bool attempt(const char* trouble, const Work& work) noexcept;
  template <typename Work>
  void use(Outlet& outlet, const Work& work) noexcept;
  void run() noexcept;
  void turn();
  void take_in(std::chrono::steady_clock::time_point deadline);
  void deliver_ready(bool give_up);
  void note_oldest();
  // Seconds since the oldest batch was sealed that no sink has yet, given that of the queue. By the
  // clock of the wall, which a batch has anyway.
  double waited(std::int64_t in_queue_ns) const;
  // Before anybody looks at the batch.
  void drop_overflow(RecordBatch& batch);
  void deliver(RecordBatch& batch) noexcept;
  void follow_rules(std::uint64_t batch);
  // What may_write throws; null where writing goes on.
  std::exception_ptr refusal() const noexcept;
  // Throws `refused`, unless that is null, to be counted as an error of the sink.
  void write(Outlet& outlet, const RecordBatch& batch, const std::exception_ptr& refused) noexcept;
  void settled(std::uint64_t asked);
  void flush_sinks() noexcept;
  void keep_house(bool last) noexcept;
  void finish() noexcept;
  void lose(Outlet& outlet, const RecordBatch& batch, const char* reason,
            const char* what) noexcept;
  void fail(Outlet& outlet, std::int64_t rows, const char* reason, const char* what) noexcept;
  void lose_scalars(Outlet& outlet, std::int64_t values, const char* reason) noexcept;
  std::int64_t losses() const;

  const PipeOptions options_;
  const RunInfo run_;
  const SeriesTable& series_;
  std::vector<Outlet> outlets_;
  std::vector<std::unique_ptr<Rule>> rules_;  // writer thread, and before it starts
  PipeCalls calls_;
  BatchQueue queue_;
  Latest latest_;
  std::list<Queued> pending_;
  std::atomic<std::int64_t> oldest_taken_ns_{0};      // of pending_; 0: none
  std::chrono::steady_clock::time_point next_flush_;  // writer thread
  std::chrono::steady_clock::time_point next_look_;
  std::atomic<std::uint64_t> settle_asked_{0};
  std::atomic<std::int64_t> beyond_series_{0};  // rows

  mutable std::mutex account_mutex_;  // outlets' counters and the members below
  std::condition_variable finished_changed_;
  struct NextRules {
    std::uint64_t batch = 0;
    std::size_t first = 0;
    std::vector<std::unique_ptr<Rule>> rules;
  };
  std::optional<NextRules> next_rules_;
  bool finished_ = false;
  std::uint64_t settle_done_ = 0;  // set by the writer thread alone
  bool abandoned_ = false;
  std::int64_t alerts_ = 0;
  std::int64_t errors_ = 0;
  std::int64_t failures_ = 0;  // of sinks
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> stop_deadline_ns_{0};
  std::atomic<std::thread::id> writer_{};
  std::thread thread_;
};

}  // namespace trainmon
