#include "detect/forward_counts.h"

#include <algorithm>
#include <string>

#include "detect/input_calls.h"

namespace trainmon::detect {

void ForwardCounts::check(const Window& window, Findings& found) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> forwards;
  for (const InputCall& call : calls_of(window.now.inputs())) {
    std::int32_t& most = forwards[{call.rank, call.chunk}];
    most = std::max(most, call.forwards);
  }
  const auto times = [](std::int32_t count) {
    return std::to_string(count) + (count == 1 ? " forward" : " forwards");
  };
  for (const auto& [place, number] : forwards) {
    SteadyCount& count = counts_[place];
    if (!count.note(number, window.now.step)) continue;
    Finding one = window.notice(Check::input, Stage::input, place.first, count.since());
    one.text = "before a backward the model makes " + times(number) + " from here on, and made " +
               times(count.usual()) + " before";
    found.add(std::move(one));
  }
}

}  // namespace trainmon::detect
