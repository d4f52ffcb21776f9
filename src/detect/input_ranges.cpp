// Of numbers drawn alike, all 24 on one rank are larger than all 24 on another less than once in
// 10^12 times. Data that comes in order is alike for longer, so a later run has to be longer.
#include "detect/input_ranges.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace trainmon::detect {
namespace {

constexpr std::int64_t kFirst = 24, kLater = 96;  // steps
constexpr std::size_t kPlaces = 256;              // that are looked at
constexpr std::array kMeasures = {"norm", "mean", "largest size"};

using Values = std::array<double, kMeasures.size()>;

Values values_of(const Sizes& sizes) {
  return {sizes.norm, sizes.mean, sizes.absmax};
}

}  // namespace

void InputRanges::check(const Window& window, Findings& found) {
  if (window.ranks.size() < 2) return;
  if (window.now.restart != restart_) runs_.clear();
  restart_ = window.now.restart;
  std::map<Place, std::map<std::int32_t, std::vector<Values>>> given;
  for (const Input& one : window.now.inputs()) {
    if (!one.sizes || !one.is_of_whole_batch || said_.contains(one.element)) continue;
    given[{one.chunk, one.call, one.element, one.sizes->count}][one.rank].push_back(
        values_of(*one.sizes));
  }
  for (const auto& [place, ranks] : given) {
    // Where one rank has none of this shape, this step tells nothing.
    if (ranks.size() != window.ranks.size()) continue;
    if (!runs_.contains(place) && runs_.size() >= kPlaces) continue;
    Runs& runs = runs_[place];
    for (std::size_t m = 0; m < runs.size(); ++m) {
      Run& run = runs[m];
      if (run.steps++ == 0) run.since = window.now.step;
      for (const auto& [rank, all] : ranks) {
        for (const Values& values : all) run.ranges.add(rank, values[m]);
      }
      check_run(window, place, m, run, found);
    }
  }
}

void InputRanges::check_run(const Window& window, const Place& place, std::size_t measure, Run& run,
                            Findings& found) {
  const std::vector<std::int32_t> ranks = run.ranges.apart();
  if (ranks.empty()) {
    run = Run{.is_first = false};
    return;
  }
  const std::string& element = std::get<std::string>(place);
  if (run.steps < (run.is_first ? kFirst : kLater) || said_.contains(element)) return;
  said_.insert(element);
  Finding one = window.notice(Check::input, Stage::input, ranks.front(), run.since);
  one.ranks = ranks;
  one.text = "inputs of other sizes than on other ranks: the " + std::string(kMeasures[measure]) +
             " of " + printable(element) + " is " + run.ranges.text(ranks);
  found.add(std::move(one));
}

}  // namespace trainmon::detect
