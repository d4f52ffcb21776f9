#include "stats/cuda/arena.h"

#include <utility>

namespace trainmon::cuda {

void Arena::reclaim() {
  for (; done < flights.size() && flights[done]->done(); ++done) {
    blobs.give_back(flights[done]->ends[1]);
    partials.give_back(flights[done]->ends[2]);
    counters.give_back(flights[done]->ends[3]);
  }
  for (; done > 0 && flights.front()->released.load(std::memory_order_acquire); --done) {
    rows.give_back(flights.front()->ends[0]);
    flights.pop_front();
  }
}

bool Arena::take(const Need& need, Flight& flight, Places& places) {
  const std::uint64_t heads[] = {rows.head(), blobs.head(), partials.head(), counters.head()};
  if (rows.take(need.rows, places.row, flight.ends[0]) &&
      blobs.take(need.blob, places.blob, flight.ends[1]) &&
      partials.take(need.partials, places.partial, flight.ends[2]) &&
      counters.take(need.counters, places.counter, flight.ends[3])) {
    return true;
  }
  rows.rewind(heads[0]);
  blobs.rewind(heads[1]);
  partials.rewind(heads[2]);
  counters.rewind(heads[3]);
  return false;
}

Need Arena::capacity() const {
  return {rows.capacity(), blobs.capacity(), partials.capacity(), counters.capacity(), has_checks};
}

bool Arena::fits(const Need& need) const {
  return need.checks <= has_checks && need.rows <= rows.capacity() &&
         need.blob <= blobs.capacity() && need.partials <= partials.capacity() &&
         need.counters <= counters.capacity();
}

Launch::Launch(std::shared_ptr<Arena> arena, std::shared_ptr<Flight> flight)
    : arena_(std::move(arena)), flight_(std::move(flight)) {}

Launch::~Launch() {
  flight_->released.store(true, std::memory_order_release);
}

bool Launch::ready() const noexcept {
  while (seen_ < flight_->rows && flight_->done(seen_)) ++seen_;
  if (seen_ < flight_->rows) return false;
  flight_->is_done.store(true, std::memory_order_release);
  return true;
}

bool Launch::lost() const noexcept {
  return arena_->is_lost.load(std::memory_order_acquire) && !ready();
}

RowState Launch::state(std::size_t row) const noexcept {
  return flight_->results[row].state;
}

}  // namespace trainmon::cuda
