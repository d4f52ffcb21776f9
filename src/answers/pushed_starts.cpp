// Which starts of a run a push reads, and which ranks have their logs.
#include <limits>
#include <utility>

#include "answers/pushed_steps.h"
#include "base/md5.h"
#include "read/start_numbers.h"

namespace trainmon {

void PushedSteps::find_starts() {
  const std::vector<RankDirectory> there = rank_directories(run_);
  const StartNumbers numbers = start_numbers(there);
  const auto number_of = [&](const RankDirectory& place) {
    return start_number(numbers, place.rank, place.restart);
  };
  for (auto& [number, start] : starts_) {
    std::erase_if(start.ranks, [&, start_number = number](const auto& one) {
      const bool is_of_another = number_of(one.second.tail->directory()) != start_number;
      if (is_of_another) start.forget(one.first);
      return is_of_another;
    });
  }
  std::map<int, const RankDirectory*> lowest;  // of each start, asked for or not
  for (const RankDirectory& place : there) {
    if (place.error) continue;
    const int number = number_of(place);
    lowest.try_emplace(number, &place);
    if (!filter_.takes_rank(place.rank)) continue;
    const bool is_older = !starts_.empty() && number < starts_.rbegin()->first;
    if (is_older && starts_.rbegin()->second.newest >= 0) continue;  // too late: a newer was given
    Start& start = starts_[number];
    if (start.ranks.contains(place.rank) || (is_older && start.is_flushed)) continue;
    start.ranks[place.rank] = {std::make_unique<RankTail>(place, filter_, TailOf::clock_steps,
                                                          std::numeric_limits<std::size_t>::max()),
                               Clock::now()};
    if (start.newest < 0) start.id.clear();
  }
  for (auto& [restart, start] : starts_) {
    const auto place = lowest.find(restart);
    if (start.id.empty() && place != lowest.end()) identify(*place->second, start);
  }
}

void PushedSteps::Start::forget(int rank) {
  for (auto& [step, ranks] : waiting) ranks.erase(rank);
  std::erase_if(waiting, [](const auto& one) { return one.second.empty(); });
  tensors.clear();  // which point into it
}

// A copy of the run is the same run.
void PushedSteps::identify(const RankDirectory& lowest, Start& start) {
  std::vector<Damage> said_elsewhere;
  const RunFacts facts = read_run_json(lowest, said_elsewhere);
  Md5 digest;
  for (const std::string& part :
       {facts.run_id, facts.process.started, facts.process.host, std::to_string(facts.process.pid),
        std::to_string(lowest.restart)}) {
    digest.add(part + "\n");
  }
  start.id = digest.finish().substr(0, 16);
  start.has_many_ranks = facts.world_size > 1 || start.ranks.size() > 1;
}

}  // namespace trainmon
