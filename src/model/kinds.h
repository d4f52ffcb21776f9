// The one table of kinds of rows: which there are, and what a group, or "all", stands for.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "trainmon/record.h"

namespace trainmon {

namespace kind {
// Of the model at the end of a step: its tensors that are no parameters.
inline constexpr std::string_view kBuffer = "buffer";
// Of a forward of the whole model: each tensor that it is given, and the entropy of its ids.
inline constexpr std::string_view kInput = "input";
inline constexpr std::string_view kInputEntropy = "input_entropy";
// What a module returns where the backward calls it again; of some modules in each step.
inline constexpr std::string_view kActvRecomputed = "actv_recomputed";
// What a twin of the model gives, with the same weights for the same batch as ever, and gradients
// of its parameters.
inline constexpr std::string_view kCanaryActv = "canary_actv";
inline constexpr std::string_view kCanaryGrad = "canary_grad";
}  // namespace kind

struct Kind {
  std::string_view name;
  std::string_view group;  // that takes it, too; "" for none
  bool is_state;           // of an optimizer, which names it
  bool in_all;             // "all" takes it: it needs no further choice
};
// In the order in which kinds are listed to people. Optimizers name their state as they like. So
// the entry "moments" stands for all of it, and the usual names can be asked for one by one.
std::span<const Kind> kind_table();
// Null: none of the table.
const Kind* known_kind(std::string_view name);

// The kinds that obey equations, in the order in which a step makes them, and buffers: of those
// checks are taken.
inline constexpr std::array<std::string_view, 9> kCheckedKinds = {
    kind::kParamOrigin, kind::kGradUnreduced, kind::kGradReduced,  "exp_avg",    "exp_avg_sq",
    "momentum_buffer",  kind::kUpdate,        kind::kParamUpdated, kind::kBuffer};
// What `checks` adds to the kinds that are asked for: the groups that have those above, the input
// and its entropy.
std::span<const std::string_view> kinds_of_checks();
// Of a canary. Its rows are no part of the training.
bool is_canary(std::string_view kind);
// One of kCheckedKinds, or the input.
bool is_checked_kind(std::string_view kind);

inline constexpr std::string_view kAllKinds = "all";
inline constexpr std::string_view kMoments = "moments";

// The groups, then "all".
std::span<const std::string_view> kind_groups();
// Whatever may be asked for: the groups, "all", every kind of the table.
std::span<const std::string_view> kind_choices();

}  // namespace trainmon
