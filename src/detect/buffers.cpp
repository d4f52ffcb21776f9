// A buffer is what the step before left, or what the forward made of it: no equation tells which.
#include "detect/buffers.h"

#include <algorithm>
#include <string>

#include "detect/checks.h"

namespace trainmon::detect {
namespace {

constexpr std::int64_t kStepsAlike = 8;

// nullptr where the step before has none that this one can be compared with.
const Observation* buffer_before(const Window& window, const Observation& one) {
  if (window.before == nullptr) return nullptr;
  const Observation* const before = window.before->find(one.tensor, Quantity::buffer, one.rank);
  const bool is_told = before != nullptr && are_comparable(*before, one) &&
                       before->dtype == one.dtype && !window.has_edit(*before, one);
  return is_told ? before : nullptr;
}

}  // namespace

void Buffers::check(const Window& window, Findings& found) {
  const std::vector<Observation>& all = window.now.all();
  Ended ended;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].quantity != Quantity::buffer) continue;
    const Ranks ranks = window.now.of(all[i].tensor, Quantity::buffer);
    const bool is_told = check_ranks(window, ranks, found);
    for (const Observation* one : ranks) check_change(window, *one, is_told, ended, found);
    i += ranks.size() - 1;
  }
  report(window, ended, found);
}

void Buffers::begin() {
  tensors_.clear();
  for (auto& [place, buffer] : ranks_) buffer.changes.forget_still();
}

void Buffers::report(const Window& window, const Ended& ended, Findings& found) {
  for (const auto& [place, tensors] : ended) {
    Finding one = window.notice(Check::gap, Stage::forward, place.second, place.first, tensors);
    one.text = std::string(one.tensors.size() == 1 ? "the buffer does" : "the buffers do") +
               " not change any more, and did in each of the " +
               std::to_string(SteadyChange::kChanged) + " steps before";
    found.add(std::move(one));
  }
}

bool Buffers::check_ranks(const Window& window, const Ranks& ranks, Findings& found) {
  if (window.ranks.size() < 2) return false;
  OfTensor& seen = tensors_[ranks.front()->tensor];
  const auto is_told = [&](const Observation* one) {
    return are_comparable(*one, *ranks.front()) && buffer_before(window, *one) != nullptr;
  };
  if (ranks.size() != window.ranks.size() || !std::ranges::all_of(ranks, is_told)) {
    seen.alike = 0;
    return false;
  }
  if (are_all_equal(ranks)) {
    ++seen.alike;
    return false;
  }
  const std::int64_t alike = std::exchange(seen.alike, 0);
  if (alike < kStepsAlike) return false;
  if (std::exchange(seen.is_said, true)) return true;
  Finding one =
      window.finding(Check::replicas, Stage::forward, ranks.front()->rank, {ranks.front()->tensor});
  one.evidence = evidence_of_bits(ranks);
  one.certain = false;
  name_odd_ranks(ranks, one);
  one.text = "the buffer differs between ranks, which had the same in " +
             std::to_string(kStepsAlike) + " steps in a row";
  found.add(std::move(one));
  return true;
}

void Buffers::check_change(const Window& window, const Observation& one, bool is_told, Ended& ended,
                           Findings& found) {
  OfRank& seen = ranks_[{one.rank, one.tensor}];
  const Observation* const before = buffer_before(window, one);
  if (before == nullptr) {
    seen.changes.forget_still();
    return;
  }
  if (are_equal(*before, one)) {
    if (seen.changes.note_still(window.now.step) && !std::exchange(seen.has_ended, true)) {
      ended[{seen.changes.since(), one.rank}].push_back(one.tensor);
    }
    return;
  }
  const std::int64_t still = seen.changes.note_change();
  if (still < kStepsAlike || std::exchange(seen.is_said, true) || is_told) return;
  Finding finding = window.finding(Check::gap, Stage::forward, one.rank, {one.tensor});
  finding.evidence = evidence_of_bits({before, &one});
  finding.certain = false;
  finding.text =
      "the buffer changed, and had not in " + std::to_string(kStepsAlike) + " steps in a row";
  found.add(std::move(finding));
}

}  // namespace trainmon::detect
