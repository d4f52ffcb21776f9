#include "detect/input_limits.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "base/text.h"

namespace trainmon::detect {
namespace {

// Calls in which it was the same, and then in a row in which it is another one. An id that most
// batches have by chance is missing in six in a row less than once in a million times.
constexpr std::int64_t kSame = 48, kOthers = 6;
constexpr std::int64_t kCalls = 8, kCallsOfStart = 3;  // with one number of elements
constexpr std::size_t kLimitPlaces = 256;

}  // namespace

void InputLimits::check(const Window& window, Findings& found) {
  if (window.now.restart != restart_) begin_start();
  restart_ = window.now.restart;
  // More or fewer ranks share a batch in other parts.
  if (ranks_ != window.ranks) arguments_.clear();
  ranks_ = window.ranks;
  struct Others {
    std::set<std::int32_t> ranks;
    double least, largest;
  };
  std::map<std::pair<std::int64_t, std::string>, Others> changes;  // by step, what has changed
  const auto report = [&](const Input& one, std::int64_t step, const std::string& text,
                          double other) {
    Others& others = changes.try_emplace({step, text}, Others{{}, other, other}).first->second;
    others.ranks.insert(one.rank);
    others.least = std::min(others.least, other);
    others.largest = std::max(others.largest, other);
  };
  for (const Input& one : window.now.inputs()) {
    const Place place(one.rank, one.chunk, one.element);
    if (one.entropy || (!arguments_.contains(place) && arguments_.size() >= kLimitPlaces)) continue;
    Argument& known = arguments_[place];
    if (known.of_start == 0) known.first_step = window.now.step;
    if (known.of_start >= 0) {
      known.of_start = known.of_start == 0 || known.count == one.count ? known.of_start + 1 : -1;
    }
    known.calls = known.count == one.count ? known.calls + 1 : 1;
    if (known.count != one.count) known.smallest.same = known.largest.same = 0;
    known.count = one.count;
    if (known.of_start == kCallsOfStart && known.before >= 0.0 && known.before != one.count &&
        !known.is_said) {
      known.is_said = true;
      report(one, known.first_step,
             "the model is not given " + grouped(static_cast<std::int64_t>(known.before)) +
                 " elements as " + printable(one.element) + " any more, as in the start before",
             one.count);
    }
    if (!one.limits) continue;
    const auto [smallest, largest] = *one.limits;
    const auto say = [&](Constant& of, double value, const char* which) {
      if (!has_changed(of, value, window.now.step)) return;
      report(one, of.since,
             std::string("the ") + which + " id in " + printable(one.element) + " is not " +
                 number_text(of.value, 6) + " any more, as in each of the " + grouped(of.same) +
                 " calls before",
             of.other);
    };
    // Flags and masks.
    if (largest <= 1.0 && known.largest.value <= 1.0) continue;
    say(known.smallest, smallest, "smallest");
    say(known.largest, largest, "largest");
  }
  for (const auto& [change, others] : changes) {
    Finding finding =
        window.notice(Check::input, Stage::input, *others.ranks.begin(), change.first);
    finding.ranks.assign(others.ranks.begin(), others.ranks.end());
    finding.text = change.second + ", but " + number_text(others.least, 6);
    if (others.least != others.largest) finding.text += " to " + number_text(others.largest, 6);
    found.add(std::move(finding));
  }
}

// What comes next may be compared with all that was the same at its end.
void InputLimits::begin_start() {
  for (auto& [place, known] : arguments_) {
    known.before = known.calls >= kCalls ? known.count : -1.0;
    known.of_start = 0;
    known.calls = 0;
  }
}

bool InputLimits::has_changed(Constant& one, double value, std::int64_t step) {
  if (one.same == 0 || (value != one.value && one.same < kSame)) {
    one = {.value = value, .same = 1, .is_said = one.is_said};
    return false;
  }
  if (value == one.value) {
    // One that comes and goes is no constant.
    one.same = one.others > 0 ? 1 : one.same + 1;
    one.others = 0;
    return false;
  }
  if (one.others++ == 0) {
    one.other = value;
    one.since = step;
  }
  if (one.others < kOthers || one.is_said) return false;
  one.is_said = true;
  return true;
}

}  // namespace trainmon::detect
