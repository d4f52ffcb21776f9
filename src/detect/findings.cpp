// The first finding in the order of execution is the verdict; what comes later may follow from it.
#include "detect/findings.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <tuple>
#include <utility>

#include "base/text.h"

namespace trainmon::detect {
namespace {

constexpr std::array<std::string_view, kChecks> kCheckNames = {
    "finite",     "start",  "input", "present", "gap",  "replicas",  "reduce", "exp_avg",
    "exp_avg_sq", "update", "zero",  "config",  "norm", "recompute", "canary"};
constexpr std::array<std::string_view, 9> kStageNames = {
    "start",          "input",        "weights", "forward", "loss",
    "grad_unreduced", "grad_reduced", "moments", "update"};

auto order(const Finding& one) {
  return std::tuple(!one.certain, one.step, one.restart, one.stage, one.check == Check::replicas,
                    one.check);
}

}  // namespace

std::string_view check_name(Check check) {
  return kCheckNames[static_cast<std::size_t>(check)];
}

bool is_check(std::string_view name) {
  return std::ranges::find(kCheckNames, name) != kCheckNames.end();
}

std::string_view stage_name(Stage stage) {
  return kStageNames[static_cast<std::size_t>(stage)];
}

Stage stage_of(Quantity quantity) {
  switch (quantity) {
    case Quantity::weight_before:
      return Stage::weights;
    case Quantity::buffer:
      return Stage::forward;
    case Quantity::grad_unreduced:
      return Stage::grad_unreduced;
    case Quantity::grad_reduced:
      return Stage::grad_reduced;
    case Quantity::exp_avg:
    case Quantity::exp_avg_sq:
    case Quantity::momentum_buffer:
      return Stage::moments;
    case Quantity::update:
    case Quantity::weight_after:
      return Stage::update;
  }
  return Stage::update;
}

std::string bound_text(const Finding& finding) {
  if (finding.bound <= 0.0 || finding.check == Check::config || finding.check == Check::input) {
    return "";
  }
  return "off by " + number_text(finding.value, 3) + ", rounding explains " +
         number_text(finding.bound, 3);
}

std::string tensor_text(const Tensor& tensor) {
  const std::string name = tensor.name.empty() ? "(root)" : printable(tensor.name);
  return tensor.element.empty() ? name : name + " " + printable(tensor.element);
}

std::string tensors_text(const std::vector<Tensor>& tensors, const Finding& finding) {
  constexpr std::size_t kShown = 3;
  const auto is_of_all = [&](const Tensor& one) { return !one.is_buffer; };
  const auto is_one = [&](std::uint32_t tensor) { return is_of_all(tensors[tensor]); };
  const auto all = static_cast<std::size_t>(std::ranges::count_if(tensors, is_of_all));
  if (all > 1 && finding.tensors.size() == all && std::ranges::all_of(finding.tensors, is_one)) {
    if (finding.tensors.size() == 2) return "both tensors";
    return "all " + grouped(static_cast<std::int64_t>(finding.tensors.size())) + " tensors";
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, finding.tensors.size()); ++i) {
    text += (text.empty() ? "" : ", ") + tensor_text(tensors[finding.tensors[i]]);
  }
  if (finding.tensors.size() > kShown) {
    text += " and " + std::to_string(finding.tensors.size() - kShown) + " more";
  }
  return text;
}

void Findings::add(Finding&& finding) {
  changed_.emplace(finding.restart, finding.step);
  const auto same = std::ranges::find_if(all_, [&](const Finding& one) {
    return one.restart == finding.restart && one.step == finding.step &&
           one.check == finding.check && one.stage == finding.stage && one.ranks == finding.ranks &&
           one.certain == finding.certain && (!one.tensors.empty() || one.text == finding.text);
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
    same->evidence = finding.evidence;
  }
}

void Findings::join_ranks() {
  for (const Step& step : std::exchange(changed_, {})) join_ranks_of(step);
}

void Findings::join_ranks_of(const Step& step) {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (Step(all_[i].restart, all_[i].step) != step) continue;
    for (std::size_t other = all_.size() - 1; other > i; --other) {
      Finding &one = all_[i], &same = all_[other];
      if (std::tie(one.restart, one.step, one.check, one.stage, one.certain, one.tensors,
                   one.text) != std::tie(same.restart, same.step, same.check, same.stage,
                                         same.certain, same.tensors, same.text)) {
        continue;
      }
      std::vector<std::int32_t> ranks;
      std::ranges::set_union(one.ranks, same.ranks, std::back_inserter(ranks));
      one.ranks = std::move(ranks);
      if (same.value * one.bound > one.value * same.bound) {
        one.value = same.value;
        one.bound = same.bound;
      }
      all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(other));
    }
  }
}

void Findings::doubt(const Finding& finding, std::int32_t rank, std::string text) {
  const auto known = std::ranges::find_if(all_, [&](const Finding& one) {
    return one.certain == finding.certain && one.restart == finding.restart &&
           one.step == finding.step && one.check == finding.check && one.text == finding.text &&
           std::ranges::binary_search(one.ranks, rank);
  });
  if (known == all_.end()) return;
  Finding others = *known;
  std::erase(others.ranks, rank);
  known->ranks = {rank};
  known->certain = false;
  known->text = std::move(text);
  if (!others.ranks.empty()) all_.insert(known, std::move(others));
  changed_.emplace(finding.restart, finding.step);
}

void Findings::confirm(const Finding& finding) {
  for (Finding& one : all_) {
    const bool is_same = one.restart == finding.restart && one.step == finding.step &&
                         one.check == finding.check && one.stage == finding.stage;
    if (is_same && one.text == finding.text) one.certain = true;
  }
}

std::int64_t Findings::count_of(Check check) const {
  std::int64_t count = 0;
  for (int i = 0; i < kEvidences; ++i) count += count_of(check, static_cast<Evidence>(i));
  return count;
}

std::int64_t Findings::count_of(Check check, Evidence evidence) const {
  const auto known = checked_.find({check, evidence});
  return known == checked_.end() ? 0 : known->second;
}

std::optional<std::size_t> Findings::verdict() const {
  if (all_.empty()) return std::nullopt;
  const auto first = std::ranges::min_element(
      all_, [](const Finding& a, const Finding& b) { return order(a) < order(b); });
  if (!first->certain) return std::nullopt;
  return static_cast<std::size_t>(first - all_.begin());
}

}  // namespace trainmon::detect
