#include "detect/backward_counts.h"

#include <algorithm>
#include <string>

namespace trainmon::detect {

void BackwardCounts::check(const Window& window, Findings& found) {
  // By rank and optimizer the last backward of the step, from 0.
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> last;
  for (const Observation& one : window.now.all()) {
    if (one.quantity != Quantity::grad_reduced) continue;
    const auto place = std::pair(one.rank, window.tensors[one.tensor].optimizer);
    std::int32_t& known = last.try_emplace(place, one.accum).first->second;
    known = std::max(known, one.accum);
  }
  for (const auto& [place, number] : last) {
    SteadyCount& count = counts_[place];
    if (!count.note(number, window.now.step)) continue;
    Finding one = window.finding(Check::reduce, Stage::grad_reduced, place.first);
    for (const Observation& row : window.now.all()) {
      const bool is_of_it = row.quantity == Quantity::grad_reduced && row.rank == place.first &&
                            window.tensors[row.tensor].optimizer == place.second;
      if (is_of_it) one.tensors.push_back(row.tensor);  // ascending
    }
    one.step = count.since();
    one.certain = false;
    one.text = "a step takes the gradients of " + std::to_string(number + 1) +
               (number == 0 ? " backward" : " backwards") + " from here on, and took those of " +
               std::to_string(count.usual() + 1) + " before";
    found.add(std::move(one));
    found.join_ranks(window.now.restart, count.since());
  }
}

}  // namespace trainmon::detect
