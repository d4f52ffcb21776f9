#include "detect/canaries.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace trainmon::detect {

bool Canaries::is_other(const ModuleOutput& a, const ModuleOutput& b) {
  if (a.digest == b.digest) return false;
  if (a.count != b.count) return true;
  const double norm = std::max(a.norm, b.norm);
  // Also where one of them is not finite.
  const auto is_within = [&](double off) { return off <= kLeast * norm; };
  return !is_within(std::abs(a.norm - b.norm)) ||
         !is_within(std::abs(a.sum - b.sum) / std::sqrt(std::max(1.0, a.count)));
}

void Canaries::take(const ModuleOutput& one, std::int64_t step, Changed& changed, Findings& found) {
  const auto [at, is_new] = lines_.try_emplace({one.rank, one.tensor, one.call}, Line{one, step});
  if (is_new) return;
  Line& line = at->second;
  const bool is_gradient = one.of == ModuleOutput::Of::canary_gradient;
  found.checked(Check::canary);
  const std::int64_t since = std::exchange(line.step, step);
  if (!is_other(std::exchange(line.last, one), one)) {
    ++line.alike;
    if (is_gradient && changed.gradients.empty()) changed.as_ever = &one;
    return;
  }
  if (std::exchange(line.alike, 0) < kAlike) return;
  changed.since = since;
  (is_gradient ? changed.gradients : changed.outputs).push_back(one);
}

void Canaries::check(const Window& window, Findings& found) {
  std::map<std::int32_t, std::vector<const ModuleOutput*>> ranks;
  for (const ModuleOutput& one : window.now.outputs()) {
    const bool is_canary =
        one.of == ModuleOutput::Of::canary || one.of == ModuleOutput::Of::canary_gradient;
    if (is_canary) ranks[one.rank].push_back(&one);
  }
  for (auto& [rank, outputs] : ranks) {
    std::ranges::sort(outputs, {}, &ModuleOutput::seq);
    Changed changed;
    for (const ModuleOutput* one : outputs) take(*one, window.now.step, changed, found);
    if (changed.outputs.empty() && changed.gradients.empty()) continue;
    if (said_.insert(rank).second) say(window, rank, changed, found);
  }
}

void Canaries::say(const Window& window, std::int32_t rank, const Changed& changed,
                   Findings& found) {
  const bool is_of_forward = !changed.outputs.empty();
  const std::vector<ModuleOutput>& all = is_of_forward ? changed.outputs : changed.gradients;
  Finding one = window.notice(Check::canary, is_of_forward ? Stage::forward : Stage::grad_unreduced,
                              rank, window.now.step, {all.front().tensor});
  const std::string more =
      all.size() == 1 ? "" : ", and " + std::to_string(all.size() - 1) + " behind it";
  if (is_of_forward) {
    one.text =
        "for the same batch and the same weights this module returns something else than ever "
        "before" +
        more + ": what it computes was changed";
  } else {
    one.text =
        "for the same batch and the same weights the forward is as ever, and this gradient is not" +
        more;
    if (changed.as_ever != nullptr) {
      one.text += "; that of " + tensor_text(window.tensors[changed.as_ever->tensor]) +
                  " still is: the backward between them was changed";
    }
  }
  if (changed.since + 1 < window.now.step) {
    one.text += ", behind step " + std::to_string(changed.since);
  }
  found.add(std::move(one));
}

}  // namespace trainmon::detect
