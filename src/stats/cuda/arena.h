// The memory of launches under way, and the results that they leave in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "stats/cuda/driver.h"
#include "stats/cuda/launch_table.h"
#include "stats/cuda/work.h"

namespace trainmon::cuda {

// Numbers [0, capacity) handed out in runs, given back in the same order.
class Ring {
 public:
  explicit Ring(std::size_t capacity) : capacity_(capacity) {}

  // The first of n, or false. `end` is for give_back().
  bool take(std::size_t n, std::size_t& first, std::uint64_t& end) {
    const std::uint64_t at = head_ % capacity_;
    const std::uint64_t skip = at + n > capacity_ ? capacity_ - at : 0;
    if (n > capacity_ || head_ + skip + n - tail_ > capacity_) return false;
    first = static_cast<std::size_t>((head_ + skip) % capacity_);
    head_ += skip + n;
    end = head_;
    return true;
  }
  void give_back(std::uint64_t end) { tail_ = end; }
  // Undoes the last take().
  std::uint64_t head() const { return head_; }
  void rewind(std::uint64_t head) { head_ = head; }
  std::size_t capacity() const { return capacity_; }

 private:
  std::size_t capacity_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;
};

// What one launch holds until the device has filled its results and nobody wants them any more.
struct Flight {
  const Result* results = nullptr;
  const CheckSums* checks = nullptr;  // of a launch with checks
  std::size_t rows = 0;
  std::uint64_t serial = 0;
  std::uint64_t ends[4] = {};
  std::atomic<bool> released{false};
  std::atomic<bool> is_done{false};  // somebody saw all of its results

  bool done(std::size_t row) const {
    return std::atomic_ref(const_cast<std::uint64_t&>(results[row].stamp))
               .load(std::memory_order_acquire) == serial;
  }
  bool done() const {
    if (is_done.load(std::memory_order_acquire)) return true;
    for (std::size_t row = rows; row-- > 0;) {
      if (!done(row)) return false;
    }
    return true;
  }
};

// Where a launch begins in each ring.
struct Places {
  std::size_t row = 0;
  std::size_t blob = 0;
  std::size_t partial = 0;
  std::size_t counter = 0;
};

// The memory of launches under way: results and tables in mapped and pinned host memory, tables,
// partial states and counters on the device. Checks have memory where a launch asked for them.
class Arena {
 public:
  // `is_lost` belongs to the device, which is never destroyed.
  Arena(const Need& capacity, const std::atomic<bool>& is_lost)
      : is_lost(is_lost),
        has_checks(capacity.checks),
        rows(capacity.rows),
        blobs(capacity.blob),
        partials(capacity.partials),
        counters(capacity.counters) {}

  // Takes back what the device is done with; results, when nobody wants them any more.
  void reclaim();
  // Room for a launch, in all rings or in none: false where one of them is full.
  bool take(const Need& need, Flight& flight, Places& places);
  Need capacity() const;
  bool fits(const Need& need) const;

  const std::atomic<bool>& is_lost;  // nothing that is under way will ever be done
  const bool has_checks;             // beside results and partial states, under their places
  Ring rows, blobs, partials, counters;
  Result* results = nullptr;
  Pointer results_device = 0;
  CheckSums* checks = nullptr;
  Pointer checks_device = 0;
  std::byte* blob = nullptr;
  Pointer blob_device = 0;
  Pointer partials_device = 0;
  Pointer check_partials_device = 0;
  Pointer counters_device = 0;
  std::deque<std::shared_ptr<Flight>> flights;  // oldest first,
  std::size_t done = 0;                         // so many of them known to be done
};

// The results of one launch. Its memory is used again once it is gone and the device is done.
class Launch {
 public:
  Launch(std::shared_ptr<Arena> arena, std::shared_ptr<Flight> flight);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  bool ready() const noexcept;
  bool lost() const noexcept;                      // will not get ready any more
  RowState state(std::size_t row) const noexcept;  // of a launch that is ready
  bool has_checks() const noexcept { return flight_->checks != nullptr; }
  CheckSums check(std::size_t row) const noexcept { return flight_->checks[row]; }

 private:
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<Flight> flight_;
  mutable std::size_t seen_ = 0;  // rows that were ready when asked last
};

}  // namespace trainmon::cuda
