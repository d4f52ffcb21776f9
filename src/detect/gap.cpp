// Weights may change in the optimizer's step alone. State and fingerprint of a row are functions of
// the elements, the same for any thread and instruction set: so another one is another tensor.
// Programs change weights, too. What looks so is noticed, and not certain.
#include "detect/gap.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "model/rounding.h"

namespace trainmon::detect {
namespace {

bool are_replicas_of_one(const std::vector<const Observation*>& ranks) {
  return std::ranges::all_of(ranks, [&](const Observation* one) {
    return one->is_replicated && are_equal(*one, *ranks.front());
  });
}

// Whether all ranks held one tensor and hold another one, which is the same on all: they did the
// same to it.
bool is_alike_on_ranks(const Window& window, std::uint32_t tensor) {
  const auto now = window.now.of(tensor, Quantity::weight_before);
  const auto before = window.before->of(tensor, Quantity::weight_after);
  return now.size() > 1 && now.size() == window.ranks.size() && before.size() == now.size() &&
         are_replicas_of_one(now) && are_replicas_of_one(before);
}

// Whether this rank and another one hold the same now, and held others before: no damage does that.
bool is_shared_now(const Window& window, const Observation& now, const Observation& left) {
  const auto now_on = window.now.of(now.tensor, Quantity::weight_before);
  return std::ranges::any_of(now_on, [&](const Observation* other) {
    const Observation* const before =
        window.before->find(now.tensor, Quantity::weight_after, other->rank);
    return other->rank != now.rank && before != nullptr && are_comparable(*other, now) &&
           are_comparable(*before, left) && are_equal(*other, now) && !are_equal(*before, left);
  });
}

// What the next step finds of a weight that a step left; nullptr where they are not to be compared.
const Observation* found_of(const Window& window, const Observation& after) {
  const Observation* const before =
      window.now.find(after.tensor, Quantity::weight_before, after.rank);
  if (before == nullptr || before->forward_changes || window.has_edit(after, *before)) {
    return nullptr;
  }
  // Other bits say the same, as after .double().
  return are_comparable(after, *before) && before->dtype == after.dtype ? before : nullptr;
}

// Whether each element may be off by its rounding alone, where it was as large as `largest` for a
// while.
bool may_be_rounding(const Observation& a, const Observation& b, double largest) {
  constexpr double kUnits = 4.0;
  const double each = kUnits * unit_roundoff(a.dtype) * largest;
  return a.is_finite && b.is_finite && a.count == b.count &&
         std::abs(a.absmax - b.absmax) <= each && std::abs(a.sum - b.sum) <= each * a.count &&
         std::abs(a.sum_sq - b.sum_sq) <= 2.0 * each * a.l1_bound() + each * each * a.count;
}

// Whether elements were set to 0, and nothing else was done, so far as sums tell.
bool is_pruned(const Observation& left, const Observation& found) {
  return found.zeros >= left.zeros + 2.0 && found.sum_sq < left.sum_sq &&
         found.absmax <= left.absmax;
}

// Whether one element alone changed: one sum of the sketch has all of it. Roundings of many
// elements are in many sums.
bool is_of_one_element(const Observation& a, const Observation& b) {
  if (a.sketch.empty() || b.sketch.empty()) return false;
  Linear change = a.linear(Evidence::sketches);
  change.add(-1.0, b.linear(Evidence::sketches));
  const double size = std::abs(a.sum - b.sum);
  const double error = change.stored + a.summing() * a.l1_bound() + b.summing() * b.l1_bound();
  const auto is_all = [&](double value) { return std::abs(std::abs(value) - size) <= error; };
  const auto is_none = [&](double value) { return std::abs(value) <= error; };
  return size > 4.0 * error && std::ranges::count_if(change.values, is_all) == 1 &&
         std::ranges::count_if(change.values, is_none) == std::ssize(change.values) - 1;
}

constexpr std::string_view kChanged =
    "the weights are not those that the step before left: they changed between two steps of the "
    "optimizer";
constexpr std::string_view kPutBack =
    "; they did so by their rounding alone, in step after step, as where a program changes weights "
    "and puts them back";
constexpr std::string_view kPutBackAtOnce =
    "; several did so by their rounding alone, as where a program changes weights and puts them "
    "back";
constexpr std::string_view kProjected =
    "; they did so in step after step, as where a program projects them onto what it allows";

}  // namespace

void Gaps::Habit::note(const Finding& finding) {
  const auto is_of_step = [&](const Finding& other) { return other.step == finding.step; };
  const bool is_new = std::ranges::none_of(certain, is_of_step);
  if (is_new && certain.size() < Findings::kMost) certain.push_back(finding);
}

bool Gaps::Habit::note(std::int64_t step, std::size_t times, std::int64_t within) {
  steps.push_back(step);
  if (steps.size() > times) steps.pop_front();
  return steps.size() == times && step - steps.front() < within;
}

// A bit that sticks is no program.
bool Gaps::is_projected(const Changed& one, double largest, Findings& found) {
  constexpr std::size_t kTimes = 8;
  constexpr std::int64_t kWithin = 16;
  Habit& habit = projected_[{one.after->rank, one.after->tensor}];
  if (habit.is_one) return true;
  if (is_of_one_element(*one.after, *one.before) ||
      may_be_rounding(*one.after, *one.before, largest)) {
    return false;
  }
  habit.note(*one.finding);
  habit.is_one = habit.note(one.finding->step, kTimes, kWithin);
  if (!habit.is_one) return false;
  for (const Finding& certain : std::exchange(habit.certain, {})) {
    found.doubt(certain, one.after->rank, std::string(kChanged) + std::string(kProjected));
  }
  return true;
}

// Three steps of so many are a habit: a program may do it in every tenth.
void Gaps::note_roundings(const Window& window, const std::map<std::int32_t, OfRank>& ranks,
                          Findings& found) {
  constexpr std::size_t kTimes = 3;
  constexpr std::int64_t kWithin = 48;
  for (const auto& [number, rank] : ranks) {
    if (rank.rounded == 0 || rank.rounded < rank.changed) continue;
    Habit& seen = rounded_[number];
    if (!seen.note(window.now.step, kTimes, kWithin)) continue;
    seen.is_one = true;
    for (const Finding& one : std::exchange(seen.certain, {})) {
      found.doubt(one, number, std::string(kChanged) + std::string(kPutBack));
    }
  }
}

void Gaps::note_limits(const Changed& one) {
  Limits& limits = limits_[{one.before->rank, one.before->tensor}];
  if (one.before->max < one.after->max) limits.high.note(one.before->max);
  if (one.before->min > one.after->min) limits.low.note(one.before->min);
}

void Gaps::know_limits(const Changed& one) {
  constexpr std::size_t kMost = 64;
  std::set<double>& known = known_limits_[one.before->rank];
  if (known.size() >= kMost) return;
  if (one.before->max < one.after->max) known.insert(one.before->max);
  if (one.before->min > one.after->min) known.insert(one.before->min);
}

void Gaps::check_limits(const Window& window, const Observation& now, Findings& found) {
  constexpr int kTimes = 8;
  const auto at = limits_.find({now.rank, now.tensor});
  if (at == limits_.end() || at->second.is_said) return;
  const auto& [low, high, is_said] = at->second;
  const bool is_beyond = (high.times >= kTimes && now.max > high.value) ||
                         (low.times >= kTimes && now.min < low.value);
  if (!is_beyond) return;
  at->second.is_said = true;
  Finding one = window.finding(Check::gap, Stage::weights, now.rank, {now.tensor});
  one.certain = false;
  one.text = "the weights go beyond a limit that a program set them to before";
  found.add(std::move(one));
}

void Gaps::begin() {
  rounded_.clear();
  projected_.clear();
  limits_.clear();
  known_limits_.clear();
}

void Gaps::check(const Window& window, Findings& found) {
  if (window.before == nullptr) return;
  std::map<std::int32_t, OfRank> ranks;
  std::vector<Changed> changed;
  for (const Observation& after : window.before->all()) {
    if (after.quantity != Quantity::weight_after) continue;
    OfRank& rank = ranks[after.rank];
    rank.largest = std::max(rank.largest, after.absmax);
    const Observation* const before = found_of(window, after);
    if (before == nullptr) continue;
    if (before->count != after.count) {  // which no damage does
      Finding one =
          window.notice(Check::gap, Stage::weights, after.rank, window.now.step, {after.tensor});
      one.text = "the weights have another number of elements than the step before left";
      found.add(std::move(one));
      continue;
    }
    const Evidence evidence = evidence_of_bits({&after, before});
    found.checked(Check::gap, evidence);
    check_limits(window, *before, found);
    const bool holds = are_equal(after, *before);
    // One that no step moves, as in a frozen backbone, tells nothing of what programs do to others.
    if (!holds || window.moves.have(after)) ++rank.compared;
    auto one = window.result(Check::gap, Stage::weights, *before, holds);
    if (one) one->evidence = evidence;
    if (!holds) changed.push_back({before, &after, std::move(one)});
  }
  for (const Changed& one : changed) {
    OfRank& rank = ranks[one.after->rank];
    ++rank.changed;
    rank.rounded += may_be_rounding(*one.after, *one.before, rank.largest) ? 1 : 0;
    rank.pruned += is_pruned(*one.after, *one.before) ? 1 : 0;
    rank.last = &one;
  }
  // A bit that sticks is no program.
  for (auto& [number, rank] : ranks) {
    if (rank.changed == 1 && is_of_one_element(*rank.last->after, *rank.last->before)) {
      rank.rounded = 0;
    }
  }
  note_roundings(window, ranks, found);
  for (const Changed& one : changed) {
    if (is_clamped(one)) know_limits(one);
  }
  std::set<std::pair<std::int32_t, std::uint32_t>> said;
  for (Changed& one : changed) {
    if (!one.finding) continue;
    Finding& finding = *one.finding;
    const OfRank& rank = ranks.at(one.after->rank);
    std::string why = reason(window, one, rank);
    finding.text = kChanged;
    if (why.empty() && is_projected(one, rank.largest, found)) why = kProjected;
    if (why.empty() && rank.rounded == rank.changed) rounded_[one.after->rank].note(finding);
    if (!why.empty()) {
      const std::pair place(one.after->rank, one.after->tensor);
      note_limits(one);
      if (said_.contains(place)) continue;
      said.insert(place);
      finding.certain = false;
      finding.text += why;
    }
    found.add(std::move(finding));
  }
  said_.merge(said);
}

bool Gaps::is_clamped(const Changed& one) const {
  const auto& [before, after, finding] = one;  // of the step: what it found, what the last one left
  if (!after->is_finite || !before->is_finite || before->count != after->count) return false;
  const auto known = known_limits_.find(before->rank);
  const auto is_known = [&](double value) {
    return known != known_limits_.end() && known->second.contains(value);
  };
  if (before->min == before->max && before->count > 1.0) {  // all were beyond it
    const double limit = before->max;
    return limit != 0.0 && is_known(limit) && (after->min >= limit || after->max <= limit);
  }
  if (before->min < after->min || before->max > after->max) return false;
  const double tolerance = std::max(1e-6, unit_roundoff(before->dtype));
  const auto may_be_limit = [&](double value) {
    return value == 0.0 || is_round(std::abs(value), tolerance) || is_known(value);
  };
  const bool is_below = after->max > before->max;
  const bool is_above = before->min > after->min;
  return (is_below || is_above) && (!is_below || may_be_limit(before->max)) &&
         (!is_above || may_be_limit(before->min));
}

std::string Gaps::reason(const Window& window, const Changed& one, const OfRank& rank) const {
  std::string own = window.why_own(*window.before, *one.after);
  if (!own.empty()) return "; " + own;
  const auto rounded = rounded_.find(one.after->rank);
  const bool is_habit = rounded != rounded_.end() && rounded->second.is_one;
  if (is_habit && may_be_rounding(*one.after, *one.before, rank.largest)) {
    return std::string(kPutBack);
  }
  if (rank.rounded > 1 && rank.rounded == rank.changed) return std::string(kPutBackAtOnce);
  if (may_be_reordered(*one.before, *one.after)) {
    return "; only the last bits of their sums did, as where their elements lie in another order";
  }
  const std::size_t others = rank.changed - (is_habit ? rank.rounded : 0);
  if (others > 1 && 2 * others > rank.compared) {
    return "; most weights did so at once, as where a program loads or averages them";
  }
  if (rank.pruned > 1 && is_pruned(*one.after, *one.before)) {
    return "; elements of several weights were set to 0 at once, as where a program prunes them";
  }
  if (is_alike_on_ranks(window, one.after->tensor)) {
    return "; all ranks did the same to them, as a program does";
  }
  if (is_shared_now(window, *one.before, *one.after)) {
    return "; ranks hold the same from here on, and not before, as where a program averages over "
           "them";
  }
  if (is_clamped(one)) return "; none is beyond a limit any more, as where a program clamps them";
  if (one.after->count == 1.0) return "; it is one number, which a program may clamp";
  return "";
}

}  // namespace trainmon::detect
