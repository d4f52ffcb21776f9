// The starts of a run: with which step each rank began them, and which are one.
#include "base/process.h"
#include "read/run_stream.h"
#include "read/start_numbers.h"

namespace trainmon {

std::vector<RunStream::Start> RunStream::starts() const {
  std::vector<Start> starts;
  for (const Directory& one : directories_) {
    const auto optimizers = static_cast<std::int32_t>(one.facts.start_steps.size());
    for (std::int32_t optimizer = 0; optimizer < optimizers; ++optimizer) {
      if (!one.timeline.newest_window(optimizer)) continue;
      const std::int64_t step = one.timeline.at(optimizer, 0).step;
      starts.push_back({one.place.rank, one.place.restart, optimizer, step});
    }
  }
  return starts;
}

std::map<std::pair<int, int>, int> RunStream::start_numbers() const {
  std::vector<RankStart> starts;
  for (const Directory& one : directories_) {
    const double updated = one.health ? seconds_of_utc(one.health->updated) : 0.0;
    starts.push_back(
        {one.place.rank, one.place.restart, seconds_of_utc(one.facts.process.started), updated});
  }
  return trainmon::start_numbers(std::move(starts));
}

}  // namespace trainmon
