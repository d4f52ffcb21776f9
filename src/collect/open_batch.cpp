// Sealing locks every buffer at once, so the rows taken are exactly those numbered so far.
#include "collect/open_batch.h"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

namespace trainmon {

OpenBatch::Buffer& OpenBatch::buffer_of_this_thread() {
  static std::atomic<std::size_t> threads{0};
  thread_local const std::size_t index = threads.fetch_add(1, std::memory_order_relaxed);
  return buffers_[index % kBuffers];
}

std::uint64_t OpenBatch::append(Row row) {
  Buffer& buffer = buffer_of_this_thread();
  const std::lock_guard lock(buffer.mutex);
  row.key.seq = take_seq();
  buffer.rows.push_back(row);
  rows_.fetch_add(1, std::memory_order_relaxed);
  return row.key.seq;
}

std::uint64_t OpenBatch::append(Row row, RowCheck check) {
  Buffer& buffer = buffer_of_this_thread();
  const std::lock_guard lock(buffer.mutex);
  check.seq = row.key.seq = take_seq();
  buffer.rows.push_back(row);
  rows_.fetch_add(1, std::memory_order_relaxed);
  try {
    buffer.checks.push_back(check);
  } catch (const std::bad_alloc&) {  // the row stands without it
  }
  return row.key.seq;
}

std::uint64_t OpenBatch::append(Row row, RowSample sample) {
  Buffer& buffer = buffer_of_this_thread();
  const std::lock_guard lock(buffer.mutex);
  // Without its sample an estimate has no error: then there is no row either.
  buffer.samples.push_back(sample);
  try {
    buffer.rows.push_back(row);
  } catch (const std::bad_alloc&) {
    buffer.samples.pop_back();
    throw;
  }
  buffer.samples.back().seq = buffer.rows.back().key.seq = take_seq();
  rows_.fetch_add(1, std::memory_order_relaxed);
  return buffer.rows.back().key.seq;
}

std::uint64_t OpenBatch::append(Scalar scalar) {
  const std::lock_guard lock(rest_mutex_);
  scalar.seq = take_seq();
  scalars_.push_back(std::move(scalar));
  return scalars_.back().seq;
}

std::uint64_t OpenBatch::append(Payload payload) {
  const std::lock_guard lock(rest_mutex_);
  if (payload.key.seq == 0) payload.key.seq = take_seq();
  payloads_.push_back(std::move(payload));
  return payloads_.back().key.seq;
}

void OpenBatch::append(Declared declared) {
  const std::lock_guard lock(rest_mutex_);
  declared.seq = seq_.load(std::memory_order_relaxed);  // no hole among the numbers of rows
  declared_.push_back(std::move(declared));
}

void OpenBatch::append(const Outcome& outcome) {
  const std::lock_guard lock(rest_mutex_);
  outcomes_.push_back(outcome);
}

RecordBatch OpenBatch::take() {
  RecordBatch batch;
  std::array<std::unique_lock<std::mutex>, kBuffers> locks;
  for (std::size_t i = 0; i < kBuffers; ++i) locks[i] = std::unique_lock(buffers_[i].mutex);
  const std::lock_guard rest(rest_mutex_);
  // All memory is asked for before a row moves: without it, every row stays where it is.
  Buffer* first = nullptr;
  std::size_t size = 0, checks = 0, samples = 0;
  for (Buffer& buffer : buffers_) {
    if (buffer.rows.empty()) continue;  // a check or a sample comes with a row
    if (first == nullptr) first = &buffer;
    size += buffer.rows.size();
    checks += buffer.checks.size();
    samples += buffer.samples.size();
  }
  if (checks > 0) batch.checks.reserve(checks);
  if (samples > 0) batch.samples.reserve(samples);
  if (first != nullptr) {
    std::vector<Row> next;
    next.reserve(first->rows.size());
    first->rows.reserve(size);
    batch.rows = std::exchange(first->rows, std::move(next));
  }
  for (Buffer& buffer : buffers_) {
    if (buffer.rows.empty()) continue;
    batch.rows.insert(batch.rows.end(), buffer.rows.begin(), buffer.rows.end());
    buffer.rows.clear();
  }
  if (checks > 0) take_beside(&Buffer::checks, batch.checks);
  if (samples > 0) take_beside(&Buffer::samples, batch.samples);
  batch.outcomes = std::move(outcomes_);
  batch.scalars = std::move(scalars_);
  batch.payloads = std::move(payloads_);
  batch.declared = std::move(declared_);
  outcomes_ = {};
  scalars_ = {};
  payloads_ = {};
  declared_ = {};
  rows_.store(0, std::memory_order_relaxed);
  const auto by_seq = [](const Row& a, const Row& b) { return a.key.seq < b.key.seq; };
  if (!std::is_sorted(batch.rows.begin(), batch.rows.end(), by_seq)) {
    std::sort(batch.rows.begin(), batch.rows.end(), by_seq);
  }
  return batch;
}

template <typename Beside>
void OpenBatch::take_beside(std::vector<Beside> Buffer::*of, std::vector<Beside>& to) {
  for (Buffer& buffer : buffers_) {
    std::vector<Beside>& from = buffer.*of;
    to.insert(to.end(), from.begin(), from.end());
    from.clear();
  }
  std::ranges::sort(to, {}, &Beside::seq);
}

}  // namespace trainmon
