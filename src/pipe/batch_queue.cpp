// Overflow is decided here and nowhere else; the training thread never waits unless it asked to.
#include "pipe/batch_queue.h"

#include <algorithm>
#include <new>
#include <utility>

namespace trainmon {
namespace {

constexpr const char* kQueueFull = "queue_full";

template <typename T>
void move_to_end(std::vector<T>& from, std::vector<T>& to) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  from.clear();
}

template <typename T>
void move_to_front(std::vector<T>& from, std::vector<T>& to) {
  to.insert(to.begin(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  from.clear();
}

}  // namespace

BatchQueue::BatchQueue(std::size_t limit_bytes, Overflow overflow)
    : limit_(limit_bytes), reserve_(limit_bytes / 16 + 4096), overflow_(overflow) {}

void BatchQueue::push(RecordBatch batch, bool may_wait) noexcept {
  std::unique_lock lock(mutex_);
  attach_carry(batch);
  if (closed_) {
    stopped_ += batch.row_count();
    return;
  }
  std::size_t bytes = batch.bytes();
  if (used_ + bytes > limit_) {
    if (overflow_ == Overflow::block && may_wait) {
      emptied_.wait(lock, [&] { return closed_ || used_ == 0 || used_ + bytes <= limit_; });
    } else if (overflow_ == Overflow::drop_oldest) {
      make_room(bytes);
    }
    // A batch larger than the whole queue still passes when the queue is empty.
    if (used_ != 0 && used_ + bytes > limit_) {
      reduce(batch);
      bytes = batch.bytes();
      if (used_ + bytes > limit_ + reserve_) {
        carry(batch);
        return;
      }
    }
  }
  append(std::move(batch), bytes);
  filled_.notify_one();
}

void BatchQueue::append(RecordBatch&& batch, std::size_t bytes) noexcept {
  const std::int64_t rows = batch.row_count();
  try {
    batches_.emplace_back();
  } catch (const std::bad_alloc&) {
    no_memory_ += rows;
    return;
  }
  batches_.back().batch = std::move(batch);
  used_ += bytes;
  peak_ = std::max(peak_, used_);
}

std::list<Queued> BatchQueue::pop_all(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  filled_.wait_for(lock,
                   std::max(deadline - std::chrono::steady_clock::now(),
                            std::chrono::steady_clock::duration::zero()),
                   [&] { return woken_ || closed_ || !batches_.empty(); });
  woken_ = false;
  for (Queued& one : batches_) one.bytes = one.batch.bytes();
  return std::exchange(batches_, {});
}

void BatchQueue::release(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    used_ -= std::min(bytes, used_);
  }
  emptied_.notify_all();
}

void BatchQueue::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  filled_.notify_one();
}

void BatchQueue::send_carry() noexcept {
  const std::lock_guard lock(mutex_);
  if (const std::size_t bytes = carry_.bytes(); !carry_.empty() && used_ + bytes <= limit_) {
    RecordBatch last;
    attach_carry(last);
    append(std::move(last), bytes);
  }
}

bool BatchQueue::carries() const {
  const std::lock_guard lock(mutex_);
  return !carry_.empty();
}

void BatchQueue::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    // What still waits in the carry goes out with the last batch; its space no longer matters.
    RecordBatch last;
    attach_carry(last);
    if (const std::size_t bytes = last.bytes(); !closed_ && !last.empty()) {
      append(std::move(last), bytes);
    }
    closed_ = true;
  }
  filled_.notify_all();
  emptied_.notify_all();
}

std::map<std::string, std::int64_t> BatchQueue::dropped() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::int64_t> all;
  if (queue_full_ > 0) all[kQueueFull] = queue_full_;
  if (stopped_ > 0) all["stopped"] = stopped_;
  if (no_memory_ > 0) all[kNoMemory] = no_memory_;
  return all;
}

BatchQueue::Fill BatchQueue::fill() const {
  const std::lock_guard lock(mutex_);
  return {used_, peak_, batches_.empty() ? 0 : batches_.front().batch.time_ns};
}

void BatchQueue::count_gap(RecordBatch& batch, std::int64_t rows, std::uint64_t first,
                           std::uint64_t last) noexcept {
  queue_full_ += rows;
  try {
    add_gap(batch.gaps, {kQueueFull, rows, first, last});
  } catch (const std::bad_alloc&) {  // then only health.json tells
  }
}

// Drops the unflagged rows, the payloads, checks and samples of a batch. Rows a device still
// computes are kept: whether one of them is bad is not known before their values are.
bool BatchQueue::reduce(RecordBatch& batch) noexcept {
  const std::int64_t before = batch.row_count();
  const auto [first, last] = seq_range(batch);
  batch.payloads = {};
  batch.checks = {};
  batch.samples = {};
  if (batch.late == nullptr) {
    std::erase_if(batch.rows, [](const Row& row) { return (row.key.flags & flag::kUrgent) == 0; });
    batch.rows.shrink_to_fit();
  }
  const std::int64_t lost = before - batch.row_count();
  if (lost == 0) return false;
  count_gap(batch, lost, first, last);
  return true;
}

void BatchQueue::carry(RecordBatch& batch) noexcept {
  std::int64_t lost = 0;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  const auto takes = [this](const Row& row) {
    const std::size_t place = carry_.rows.size();
    try {
      carry_.rows.push_back(row);
      if (carried_rows_.emplace(row.key.series, place).second) return true;
    } catch (const std::bad_alloc&) {
    }
    carry_.rows.resize(place);
    return false;
  };
  for (const Row& row : batch.rows) {
    if (batch.late == nullptr && takes(row)) continue;
    if (lost++ == 0) first = row.key.seq;
    last = row.key.seq;
  }
  if (carry_.empty()) {
    carry_.number = batch.number;
    carry_.moment = batch.moment;
    carry_.time_ns = batch.time_ns;
    carry_.eps = batch.eps;
  }
  try {
    move_to_end(batch.outcomes, carry_.outcomes);
    move_to_end(batch.scalars, carry_.scalars);
    move_to_end(batch.declared, carry_.declared);
    // Counted already when the gap was made: only the place in the data is merged.
    for (const Gap& gap : batch.gaps) add_gap(carry_.gaps, gap);
  } catch (const std::bad_alloc&) {  // no rows are among them
  }
  if (lost > 0) count_gap(carry_, lost, first, last);
}

void BatchQueue::attach_carry(RecordBatch& batch) noexcept {
  if (carry_.empty()) return;
  if (batch.number == 0) {
    batch = std::exchange(carry_, {});
    carried_rows_.clear();
    return;
  }
  try {
    // Late batches take no carried rows: every row of theirs waits for the device.
    if (batch.late == nullptr) {
      move_to_front(carry_.rows, batch.rows);
      carried_rows_.clear();
    }
    move_to_front(carry_.outcomes, batch.outcomes);
    move_to_front(carry_.scalars, batch.scalars);
    move_to_front(carry_.declared, batch.declared);
    move_to_front(carry_.gaps, batch.gaps);
  } catch (const std::bad_alloc&) {  // what has not moved rides on a later batch
  }
}

void BatchQueue::make_room(std::size_t bytes) noexcept {
  for (Queued& queued : batches_) {
    RecordBatch& old = queued.batch;
    if (used_ + bytes <= limit_) return;
    const std::size_t before = old.bytes();
    if (reduce(old)) used_ -= before - old.bytes();
  }
}

}  // namespace trainmon
