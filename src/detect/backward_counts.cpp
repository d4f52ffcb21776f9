#include "detect/backward_counts.h"

#include <algorithm>
#include <string>
#include <tuple>

namespace trainmon::detect {
namespace {

std::string backwards(std::int32_t count) {
  return std::to_string(count) + (count == 1 ? " backward" : " backwards");
}

}  // namespace

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
    open_.erase(place.first);  // it has stepped
    SteadyCount& count = counts_[place];
    if (!count.note(number, window.now.step)) continue;
    Finding one = window.notice(Check::reduce, Stage::grad_reduced, place.first, count.since(),
                                window.reduced_of(place.first, place.second));
    one.text = "a step takes the gradients of " + backwards(number + 1) +
               " from here on, and took those of " + std::to_string(count.usual() + 1) + " before";
    found.add(std::move(one));
  }
}

// Each backward has a first forward. It has the number of the one before where gradients were
// cleared between.
void BackwardCounts::note_open(const StepEvidence& evidence) {
  std::map<std::tuple<std::int32_t, std::int32_t, std::string>, std::int32_t> forwards;
  std::map<std::int32_t, std::int32_t> most;  // by rank
  for (const Input& one : evidence.inputs()) {
    if (one.call > 0 || one.entropy) continue;
    const std::int32_t count = ++forwards[{one.rank, one.chunk, one.element}];
    most[one.rank] = std::max(most[one.rank], count);
  }
  for (const auto& [rank, count] : most) open_[rank] = {evidence.restart, evidence.step, count};
}

// A record may end before a step does, so what is open must have many more backwards than a step.
void BackwardCounts::end(Findings& found) const {
  constexpr std::int32_t kMore = 8, kTimes = 4;
  std::map<std::int32_t, std::int32_t> usual;  // the most of an optimizer, by rank
  for (const auto& [place, count] : counts_) {
    if (count.alike() < SteadyCount::kOther) continue;
    std::int32_t& most = usual.try_emplace(place.first, 0).first->second;
    most = std::max(most, count.last() + 1);
  }
  for (const auto& [rank, open] : open_) {
    const auto known = usual.find(rank);
    if (known == usual.end() || open.backwards < kMore + kTimes * known->second) continue;
    Finding one;
    one.restart = open.restart;
    one.step = open.step;
    one.check = Check::update;
    one.stage = Stage::update;
    one.ranks = {rank};
    one.certain = false;
    one.text = "the optimizer steps no more: " + backwards(open.backwards) +
               " came after its last step, which had " + std::to_string(known->second);
    found.add(std::move(one));
  }
}

}  // namespace trainmon::detect
