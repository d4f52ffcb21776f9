// What is drawn from few values is the same by chance, but not in eight calls in a row.
#include "detect/shared_arguments.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace trainmon::detect {
namespace {

constexpr std::int64_t kCallsOwn = 16, kCallsShared = 8;  // in a row
constexpr std::size_t kMostLines = 256;

// The ranks that have what another one has, ascending.
std::vector<std::int32_t> sharing(const std::vector<const Input*>& all) {
  std::vector<std::int32_t> ranks;
  for (const Input* one : all) {
    const auto is_same = [&](const Input* other) {
      return other->rank != one->rank && other->fingerprint == one->fingerprint;
    };
    if (std::ranges::any_of(all, is_same)) ranks.push_back(one->rank);
  }
  std::ranges::sort(ranks);
  return ranks;
}

}  // namespace

void SharedArguments::check(const Window& window, Findings& found) {
  if (ranks_ != window.ranks) lines_.clear();
  ranks_ = window.ranks;
  if (ranks_.size() < 2) return;
  std::map<Call, std::map<std::string, std::vector<const Input*>>> calls;
  for (const Input& one : window.now.inputs()) {
    if (!one.fingerprint || !one.is_of_whole_batch) continue;
    calls[{one.chunk, one.accum, one.call}][one.element].push_back(&one);
  }
  for (const auto& [call, arguments] : calls) {
    if (arguments.size() < 2) continue;
    const auto is_own = [](const auto& one) { return sharing(one.second).empty(); };
    const bool has_own = std::ranges::any_of(arguments, is_own);
    for (const auto& [element, all] : arguments) note(window, all, has_own, found);
  }
}

void SharedArguments::note(const Window& window, const std::vector<const Input*>& all, bool has_own,
                           Findings& found) {
  const Input& one = *all.front();
  const std::pair place(Call(one.chunk, one.accum, one.call), one.element);
  if (all.size() < ranks_.size() || (!lines_.contains(place) && lines_.size() >= kMostLines)) {
    return;
  }
  Line& line = lines_[place];
  std::vector<std::int32_t> ranks = sharing(all);
  if (ranks.empty()) {
    line.own = line.shared > 0 ? 1 : line.own + 1;
    line.shared = 0;
    return;
  }
  const auto of_first = [&](const Input* input) { return input->rank == ranks.front(); };
  const std::uint64_t bits = *(*std::ranges::find_if(all, of_first))->fingerprint;
  // One mask for all, or a value that stays.
  const bool is_constant = std::exchange(line.last, bits) == bits;
  if (is_constant || !has_own) {
    line.own = line.shared = 0;
    return;
  }
  if (line.shared++ == 0) line.since = window.now.step;
  if (line.shared != kCallsShared || line.own < kCallsOwn) return;
  if (!said_.insert(one.element).second) return;
  Finding finding = window.notice(Check::input, Stage::input, ranks.front(), line.since);
  finding.ranks = std::move(ranks);
  finding.evidence = Evidence::fingerprints;
  finding.text = printable(one.element) +
                 " is the same on ranks that had others before, call by call, though another "
                 "argument is not: as random numbers of one seed";
  found.add(std::move(finding));
}

}  // namespace trainmon::detect
