// The bounded queue between training and the writer thread: limited by bytes, every loss counted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "trainmon/overflow.h"
#include "trainmon/record.h"

namespace trainmon {

inline constexpr const char* kNoMemory = "no_memory";

// A batch on its way through the queue, and how long it is waited for behind it. The writer moves
// it without asking for memory.
struct Queued {
  RecordBatch batch;
  std::size_t bytes = 0;  // to be released
  std::chrono::steady_clock::time_point deadline;
};

// A batch that does not fit is reduced to what must not be lost: outcomes, scalars and the
// flagged rows. These may use a reserve beyond the limit. When the reserve is full as well, they
// wait in a carry and ride on the next batch. The carry is bounded by the number of series (first
// flagged row of each). Rows given up are counted under "queue_full" and leave a gap in the data.
// Without memory nothing throws: what cannot be kept is counted.
class BatchQueue {
 public:
  BatchQueue(std::size_t limit_bytes, Overflow overflow);

  // Any thread. Waits only under Overflow::block (until there is room or the queue is closed).
  void push(RecordBatch batch, bool may_wait) noexcept;
  // The writer's side: everything queued, oldest first; waits until `deadline` for something.
  std::list<Queued> pop_all(std::chrono::steady_clock::time_point deadline);
  // Gives back the space of a batch that pop_all returned, when it has been delivered.
  void release(std::size_t bytes);
  // Wakes the writer without a batch.
  void wake();
  // What waits in the carry goes out without another batch, if there is room.
  void send_carry() noexcept;
  bool carries() const;
  // Lets push() fail fast from now on: everything pushed is counted as dropped under "stopped".
  void close() noexcept;

  std::map<std::string, std::int64_t> dropped() const;
  // What waits, until it is released.
  struct Fill {
    std::size_t bytes = 0;
    std::size_t peak_bytes = 0;
    std::int64_t oldest_ns = 0;  // when the first was sealed that pop_all has not taken; 0: none
  };
  Fill fill() const;

 private:
  bool reduce(RecordBatch& batch) noexcept;
  void carry(RecordBatch& batch) noexcept;
  void attach_carry(RecordBatch& batch) noexcept;
  void make_room(std::size_t bytes) noexcept;
  void count_gap(RecordBatch& batch, std::int64_t rows, std::uint64_t first,
                 std::uint64_t last) noexcept;
  void append(RecordBatch&& batch, std::size_t bytes) noexcept;

  const std::size_t limit_;
  const std::size_t reserve_;
  const Overflow overflow_;
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::condition_variable emptied_;
  std::list<Queued> batches_;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
  bool woken_ = false;
  bool closed_ = false;
  std::int64_t queue_full_ = 0;  // rows dropped, by reason
  std::int64_t stopped_ = 0;
  std::int64_t no_memory_ = 0;
  RecordBatch carry_;
  std::unordered_map<SeriesId, std::size_t> carried_rows_;  // series -> index in carry_.rows
};

}  // namespace trainmon
