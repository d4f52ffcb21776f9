// Child of the kill test: threads record rows until somebody kills it. Usage: flight_child
// DIRECTORY THREADS.
#include <cstdlib>
#include <thread>
#include <vector>

#include "flight_events.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  using namespace trainmon;
  const EightSeries series;
  FlightRecorder recorder(run_in(argv[1]), series, flight::kLeastBytes);
  std::vector<std::thread> threads;
  for (SeriesId id = 0; id < static_cast<SeriesId>(std::atoi(argv[2])); ++id) {
    threads.emplace_back([&recorder, id] {
      for (std::int64_t number = 0;; ++number) recorder.row(row_of(id, number), number + 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}
