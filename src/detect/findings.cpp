// The first finding in the order of execution is the verdict; what comes later may follow from it.
#include "detect/findings.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace trainmon::detect {
namespace {

constexpr std::array<std::string_view, kChecks> kCheckNames = {
    "finite", "gap", "replicas", "reduce", "exp_avg", "exp_avg_sq", "update", "zero", "config"};
constexpr std::array<std::string_view, 9> kStageNames = {
    "start",          "input",        "weights", "forward", "loss",
    "grad_unreduced", "grad_reduced", "moments", "update"};

auto order(const Finding& one) {
  return std::tuple(!one.certain, one.restart, one.step, one.stage, one.check == Check::replicas,
                    one.check);
}

}  // namespace

std::string_view check_name(Check check) {
  return kCheckNames[static_cast<std::size_t>(check)];
}

std::string_view stage_name(Stage stage) {
  return kStageNames[static_cast<std::size_t>(stage)];
}

void Findings::add(Finding&& finding) {
  const auto same = std::ranges::find_if(all_, [&](const Finding& one) {
    return one.restart == finding.restart && one.step == finding.step &&
           one.check == finding.check && one.stage == finding.stage && one.ranks == finding.ranks &&
           one.certain == finding.certain;
  });
  if (same == all_.end()) {
    if (all_.size() < kMost) {
      all_.push_back(std::move(finding));
    } else {
      ++left_out_;
    }
    return;
  }
  for (const std::uint32_t tensor : finding.tensors) {
    const auto at = std::ranges::lower_bound(same->tensors, tensor);
    if (at == same->tensors.end() || *at != tensor) same->tensors.insert(at, tensor);
  }
  // Ratios to the bound, without a division by a bound of zero.
  if (finding.value * same->bound > same->value * finding.bound) {
    same->value = finding.value;
    same->bound = finding.bound;
    same->text = std::move(finding.text);
  }
}

std::int64_t Findings::count_of(Check check) const {
  const auto known = checked_.find(check);
  return known == checked_.end() ? 0 : known->second;
}

std::optional<std::size_t> Findings::verdict() const {
  if (all_.empty()) return std::nullopt;
  const auto first = std::ranges::min_element(
      all_, [](const Finding& a, const Finding& b) { return order(a) < order(b); });
  return static_cast<std::size_t>(first - all_.begin());
}

}  // namespace trainmon::detect
