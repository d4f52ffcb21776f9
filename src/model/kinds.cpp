// The table of kinds, and the lists that follow from it.
#include "model/kinds.h"

#include <algorithm>
#include <array>

namespace trainmon {
namespace {

using std::string_view;

constexpr Kind fixed(string_view name, string_view group = "") {
  return {.name = name, .group = group, .is_state = false, .in_all = true};
}
// How queries and keys are laid out is a choice (attention_layout).
constexpr Kind of_attention(string_view name) {
  return {.name = name, .group = "attention", .is_state = false, .in_all = false};
}
// "all" has it already, by "moments".
constexpr Kind one_state(string_view name) {
  return {.name = name, .group = "", .is_state = true, .in_all = false};
}

constexpr std::array kTable = {
    fixed(kind::kGradUnreduced, "grads"),
    fixed(kind::kGradMicro),
    fixed(kind::kGradReduced, "grads"),
    fixed(kind::kParamOrigin, "weights"),
    fixed(kind::kParamUpdated, "weights"),
    Kind{.name = kind::kUpdate, .group = "", .is_state = false, .in_all = false},
    Kind{.name = kind::kBuffer, .group = "", .is_state = false, .in_all = false},
    Kind{.name = kind::kInput, .group = "", .is_state = false, .in_all = false},
    Kind{.name = kind::kInputEntropy, .group = "", .is_state = false, .in_all = false},
    Kind{.name = kMoments, .group = kMoments, .is_state = true, .in_all = true},
    one_state("exp_avg"),
    one_state("exp_avg_sq"),
    one_state("max_exp_avg_sq"),
    one_state("exp_inf"),
    one_state("momentum_buffer"),
    one_state("square_avg"),
    fixed(kind::kActv, "activations"),
    fixed(kind::kActvGrad, "activations"),
    Kind{.name = kind::kActvRecomputed, .group = "", .is_state = false, .in_all = false},
    Kind{.name = kind::kCanaryActv, .group = "canary", .is_state = false, .in_all = false},
    Kind{.name = kind::kCanaryGrad, .group = "canary", .is_state = false, .in_all = false},
    fixed(kind::kCc),
    fixed(kind::kMgDirection),
    fixed(kind::kUpdateRatio),
    fixed(kind::kStack),
    of_attention(kind::kAttnEntropy),
    of_attention(kind::kAttnMax),
    of_attention(kind::kAttnMaxLogit),
    fixed(kind::kStableRank, "spectral"),
    fixed(kind::kSpectralNorm, "spectral"),
    fixed(kind::kRouterSimilarity, "router"),
    fixed(kind::kRouterEntropy, "router"),
};

// Each name once, none of them empty.
struct Names {
  std::array<string_view, 2 * kTable.size() + 1> names{};
  std::size_t count = 0;

  constexpr void add(string_view name) {
    const auto end = names.begin() + count;
    if (!name.empty() && std::find(names.begin(), end, name) == end) names[count++] = name;
  }
  std::span<const string_view> list() const { return {names.data(), count}; }
};

constexpr Names kGroups = [] {
  Names groups;
  for (const Kind& kind : kTable) groups.add(kind.group);
  groups.add(kAllKinds);
  return groups;
}();

constexpr Names kFixed = [] {
  Names fixed;
  for (const Kind& kind : kTable) fixed.add(kind.is_state ? "" : kind.name);
  return fixed;
}();

constexpr Names kChoices = [] {
  Names choices = kGroups;
  for (const Kind& kind : kTable) choices.add(kind.name);
  return choices;
}();

constexpr Names kOfChecks = [] {
  Names asked;
  for (const string_view checked : kCheckedKinds) {
    const Kind& kind = *std::ranges::find(kTable, checked, &Kind::name);
    asked.add(kind.is_state ? kMoments : kind.group.empty() ? kind.name : kind.group);
  }
  asked.add(kind::kInput);
  asked.add(kind::kInputEntropy);
  asked.add(kind::kActvRecomputed);
  return asked;
}();

}  // namespace

std::span<const Kind> kind_table() {
  return kTable;
}

const Kind* known_kind(string_view name) {
  const auto known = std::ranges::find(kTable, name, &Kind::name);
  return known != kTable.end() ? &*known : nullptr;
}

std::span<const string_view> kind_groups() {
  return kGroups.list();
}

std::span<const string_view> fixed_kinds() {
  return kFixed.list();
}

std::span<const string_view> kind_choices() {
  return kChoices.list();
}

std::span<const string_view> kinds_of_checks() {
  return kOfChecks.list();
}

bool is_canary(string_view kind) {
  return kind == kind::kCanaryActv || kind == kind::kCanaryGrad;
}

bool is_checked_kind(string_view kind) {
  return kind == kind::kInput || std::ranges::find(kCheckedKinds, kind) != kCheckedKinds.end();
}

}  // namespace trainmon
