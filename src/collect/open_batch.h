// Rows gather here until a seal: one append buffer per thread group, ordered by seq when taken.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

// Thread-safe; producers on different threads practically never meet on one lock. A row gets its
// seq under the lock of its buffer, so take() returns every row numbered so far: no holes.
class OpenBatch {
 public:
  // Returns the row's seq.
  std::uint64_t append(Row row);
  // The check gets the seq of the row.
  std::uint64_t append(Row row, RowCheck check);
  // The same of a sample. Throws std::bad_alloc with nothing appended.
  std::uint64_t append(Row row, RowSample sample);
  std::uint64_t append(Scalar scalar);
  std::uint64_t append(Payload payload);
  void append(Declared declared);
  void append(const Outcome& outcome);

  // The next seq without a row of this batch: for rows kept elsewhere until a device is done.
  std::uint64_t take_seq() { return seq_.fetch_add(1, std::memory_order_relaxed); }

  // Moves everything out, rows ordered by seq. Throws std::bad_alloc with everything left inside.
  RecordBatch take();
  std::int64_t rows() const { return rows_.load(std::memory_order_relaxed); }

 private:
  struct alignas(64) Buffer {
    std::mutex mutex;
    std::vector<Row> rows;
    std::vector<RowCheck> checks;
    std::vector<RowSample> samples;
  };
  static constexpr std::size_t kBuffers = 16;

  Buffer& buffer_of_this_thread();
  // All of them, by seq. Every mutex is held, and `to` has room.
  template <typename Beside>
  void take_beside(std::vector<Beside> Buffer::*of, std::vector<Beside>& to);

  std::array<Buffer, kBuffers> buffers_;
  std::atomic<std::uint64_t> seq_{1};
  std::atomic<std::int64_t> rows_{0};
  std::mutex rest_mutex_;
  std::vector<Outcome> outcomes_;
  std::vector<Scalar> scalars_;
  std::vector<Payload> payloads_;
  std::vector<Declared> declared_;
};

}  // namespace trainmon
