// Values drawn from few come again by chance, but not eight times in a row at one distance.
#include "detect/repeated_arguments.h"

#include <algorithm>

#include "base/text.h"

namespace trainmon::detect {
namespace {

constexpr std::int64_t kCallsFresh = 16, kCallsAgain = 8;  // calls in a row
// What is given again at once may be a mask or a value that stays. So it must have been new for
// longer, and have so many elements.
constexpr std::int64_t kCallsFreshest = 64;
constexpr double kElements = 8.0;
constexpr std::size_t kArguments = 256;  // of all ranks, that are looked at

auto place_of_call(const Input& one) {
  return std::tuple(one.rank, one.chunk, one.call, one.accum);
}

}  // namespace

void RepeatedArguments::Line::note(std::uint64_t bits, std::int64_t step) {
  const std::int64_t number = given.calls();
  const std::optional<LastGiven::Given> same = given.note(bits, step);
  const std::int64_t before = std::exchange(distance, same ? number - same->number : 0);
  fresh = same ? 0 : fresh + 1;
  freshest = std::max(freshest, fresh);
  if (!same || distance != before) again = 0;
  if (same && again++ == 0) since = step;
}

void RepeatedArguments::check(const Window& window, Findings& found) {
  if (window.now.restart != restart_) lines_.clear();
  restart_ = window.now.restart;
  std::vector<const Input*> sorted;
  for (const Input& one : window.now.inputs()) {
    if (one.fingerprint) sorted.push_back(&one);
  }
  std::ranges::stable_sort(sorted, {}, [](const Input* one) { return place_of_call(*one); });
  std::vector<Named> call;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const Input& one = *sorted[i];
    const Place place{one.rank, one.chunk, one.call, one.element};
    if (lines_.contains(place) || lines_.size() < kArguments) {
      Line& line = lines_[place];
      line.note(*one.fingerprint, window.now.step);
      call.emplace_back(&one, &line);
    }
    const bool is_last =
        i + 1 == sorted.size() || place_of_call(*sorted[i + 1]) != place_of_call(one);
    if (is_last) check_call(window, std::exchange(call, {}), found);
  }
}

void RepeatedArguments::check_call(const Window& window, const std::vector<Named>& call,
                                   Findings& found) {
  // The whole batch came again: Inputs says so.
  const auto begins_again = [](const Named& one) { return one.second->again == 1; };
  const bool is_batch = std::ranges::all_of(call, begins_again);
  for (const auto& [input, line] : call) {
    if (line->again <= 1) line->began_as_batch = is_batch;
  }
  const auto is_new = [](const Named& one) { return one.second->fresh >= kCallsAgain; };
  if (std::ranges::none_of(call, is_new)) return;
  for (const auto& [input, line] : call) {
    const bool may_stay =
        line->freshest < kCallsFreshest || input->count < kElements || input->is_constant;
    const bool is_again = line->freshest >= kCallsFresh && line->again >= kCallsAgain &&
                          (line->distance > 1 || (line->distance == 1 && !may_stay));
    if (!is_again || line->began_as_batch) continue;
    const std::int64_t now = window.now.step;  // of other ranks it is said in the same step
    if (said_.try_emplace(input->element, now).first->second != now) continue;
    Finding one = window.notice(Check::input, Stage::input, input->rank, line->since);
    one.evidence = Evidence::fingerprints;
    one.text =
        printable(input->element) +
        (line->distance == 1 ? " is given the same again in each call"
                             : " is given again what it had " + std::to_string(line->distance) +
                                   " calls before, call by call") +
        ", though another argument is new: as random numbers that are seeded again, or data in "
        "one order";
    found.add(std::move(one));
  }
}

}  // namespace trainmon::detect
