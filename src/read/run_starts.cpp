// The starts of a run: with which step each rank began them, and which are one.
#include <algorithm>
#include <utility>

#include "base/process.h"
#include "read/run_stream.h"

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

std::map<int, std::set<int>> RunStream::ranks_of_starts() const {
  const StartNumbers numbers = start_numbers();
  std::map<int, std::set<int>> ranks;
  std::map<int, int> world_sizes;
  for (const Directory& one : directories_) {
    const int start = start_number(numbers, one.place.rank, one.place.restart);
    ranks[start].insert(one.place.rank);
    int& size = world_sizes[start];
    size = std::max(size, one.facts.world_size);
  }
  for (auto& [start, of_start] : ranks) {
    const auto add = [&of_start, size = world_sizes.at(start)](int rank) {
      if (rank < size) of_start.insert(rank);
    };
    std::ranges::for_each(facts_.ranks, add);
    std::ranges::for_each(facts_.missing.ranks, add);
  }
  return ranks;
}

StartNumbers RunStream::start_numbers() const {
  std::vector<RankStart> starts;
  for (const Directory& one : directories_) {
    const double updated = one.health ? seconds_of_utc(one.health->updated) : 0.0;
    starts.push_back(
        {one.place.rank, one.place.restart, seconds_of_utc(one.facts.process.started), updated});
  }
  return trainmon::start_numbers(std::move(starts));
}

StartNumbers start_numbers(const std::vector<RankDirectory>& directories) {
  std::map<int, std::vector<int>> by_rank;
  for (const RankDirectory& one : directories) {
    if (!one.error) by_rank[one.rank].push_back(one.restart);
  }
  const auto is_as_first = [&](const auto& one) { return one.second == by_rank.begin()->second; };
  if (std::ranges::all_of(by_rank, is_as_first)) return {};
  std::vector<RankStart> starts;
  for (const RankDirectory& one : directories) {
    if (one.error) continue;
    std::vector<Damage> said_elsewhere;
    const double started = seconds_of_utc(read_run_json(one, said_elsewhere).process.started);
    const auto health = read_health_json(one, said_elsewhere);
    starts.push_back(
        {one.rank, one.restart, started, health ? seconds_of_utc(health->updated) : 0.0});
  }
  return start_numbers(std::move(starts));
}

}  // namespace trainmon
