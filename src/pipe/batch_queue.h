// The bounded queue between training and the writer thread: limited by bytes, every loss counted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "trainmon/config.h"
#include "trainmon/record.h"

namespace trainmon {

// A batch that does not fit is reduced to what must not be lost: outcomes, scalars and the flagged
// rows, which may use a reserve beyond the limit. When the reserve is full as well, they wait in a
// carry bounded by the number of series (first flagged row of each) and ride on the next batch.
// Rows given up are counted under "queue_full" and leave a gap in the data.
class BatchQueue {
 public:
  BatchQueue(std::size_t limit_bytes, Overflow overflow);

  // Any thread. Waits only under Overflow::block (until there is room or the queue is closed).
  void push(RecordBatch batch, bool may_wait);
  // The writer's side: everything queued, oldest first; waits until `deadline` for something.
  std::deque<RecordBatch> pop_all(std::chrono::steady_clock::time_point deadline);
  // Gives back the space of a batch that pop_all returned, when it has been delivered.
  void release(std::size_t bytes);
  // Wakes the writer without a batch.
  void wake();
  // Lets push() fail fast from now on: everything pushed is counted as dropped under "stopped".
  void close();

  std::int64_t rows_dropped(const std::string& reason) const;
  std::map<std::string, std::int64_t> dropped() const;
  std::size_t peak_bytes() const;

 private:
  bool reduce(RecordBatch& batch);
  void carry(RecordBatch& batch);
  void attach_carry(RecordBatch& batch);
  void make_room(std::size_t bytes);
  void count_gap(RecordBatch& batch, std::int64_t rows, std::uint64_t first, std::uint64_t last);

  const std::size_t limit_;
  const std::size_t reserve_;
  const Overflow overflow_;
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::condition_variable emptied_;
  std::deque<RecordBatch> batches_;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
  bool woken_ = false;
  bool closed_ = false;
  std::map<std::string, std::int64_t> dropped_;
  RecordBatch carry_;
  std::unordered_map<SeriesId, std::size_t> carried_rows_;  // series -> index in carry_.rows
};

}  // namespace trainmon
