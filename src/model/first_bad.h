// What went wrong first: one order of rows that are not finite and one account of where it came
// from. Readers and what a run says while it goes on share them.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "trainmon/record.h"

namespace trainmon {

// The order in which a fault passes through a step. First are weights before the step 0, forward
// 1, backward 2 and collectives 3. Then come reduced gradients 4, optimizer state and all else 5,
// and weights after the step 6. Weights before the step are what the forward used. So they come
// before everything else of the step, whatever the backward they were read after.
int moment_of(std::string_view kind);
bool is_gradient(std::string_view kind);
// Whether a skipped step leaves nothing of a kind, and its being bad may be why it was skipped.
// That is so of gradients. Without a loss scale, which makes none of these bad, it is so of what
// modules are given and give.
bool may_be_why_skipped(std::string_view kind, double loss_scale);
// A gradient of a parameter, recorded as such.
bool is_parameter_gradient(std::string_view kind);
// Whether a row holds a NaN or an infinity that is not part of a mask.
inline bool is_bad(std::uint32_t flags, const RowState& state) {
  return (flags & flag::kNonFinite) != 0 || (state.non_finite() && (flags & flag::kMasked) == 0);
}
// The kind of a logged loss that is not finite: a place of its own, after the rows of its step.
inline constexpr std::string_view kLogged = "logged";

// Where a row that is not finite stands among all of them; the smallest is the first.
struct BadPlace {
  // Of a window that was skipped, and gone with it. A loss scaler makes and drops such steps as its
  // way of working, and a loop may leave them out. So they come after everything else.
  bool is_routine = false;
  std::int64_t step = 0;
  std::int32_t run_through = 0;  // which time the run went through the step
  std::int32_t attempt = 0;
  std::int32_t accum = 0;  // -1 for weights before the step
  int moment = 0;
  std::uint64_t seq = 0;  // of its rank
  std::int32_t rank = 0;
  std::int32_t restart = 0;
  auto operator<=>(const BadPlace&) const = default;
};
// The same for two places of one rank and restart. Optimizers count steps of their own, so between
// two of them the order of execution decides.
bool comes_before(const BadPlace& a, int optimizer_of_a, const BadPlace& b, int optimizer_of_b);
// Of one rank; the members after `seq` and `run_through` are the caller's.
BadPlace bad_place(std::string_view kind, std::int32_t accum, std::uint64_t seq,
                   const Outcome& outcome);

// Rows of one kind, and how many of them are bad.
struct BadCount {
  std::int64_t rows = 0;
  std::int64_t bad = 0;
  std::string last_bad = {};  // the name of the one with the largest seq
  std::uint64_t last_seq = 0;

  void add(bool is_bad, std::uint64_t seq, std::string_view name);
  void add(const BadCount& others);  // their numbers alone
};

// What the rank of the first bad row saw in the same window.
struct AroundBad {
  BadCount gradients;            // of the row's kind in the same backward, itself among them
  std::int64_t activations = 0;  // rows of activations
  BadCount local;                // gradients before the reduction
  BadCount passed;               // gradients of activations
  BadCount behind;               // all that comes behind the forward, but these
  std::optional<double> loss;    // that was logged; one that is not finite, where there is one
  std::string setting;           // of an optimizer, NaN by then: "lr of group 0 is nan from ..."
};
// Whether a value of an optimizer's group can be no setting, and how that is said. An infinity may
// be meant: no limit.
bool is_bad_setting(const DeclaredValue& value);
std::string setting_text(const DeclaredValue& value, std::int32_t group, std::int64_t step);
// "step 9 was not recorded: what went wrong may have begun before step 10".
std::string gap_text(std::int64_t bad_step);
// Whether a scalar of this name is taken for a loss.
bool is_loss(std::string_view name);
void add_loss(std::optional<double>& loss, double value);

// Where a bad row came from, where that is not the row's own tensor.
struct Origin {
  std::string place;  // "the forward or the loss"; empty: the tensor of the row
  std::string why;    // "12 of 12 gradients of its backward are not finite, the logged loss is nan"
  std::string module;  // what is known of the module, or how it becomes known; may be empty
};
// What the model is given comes from the data. A setting that is NaN makes weights NaN. A bad loss,
// and most gradients of one backward bad at once, are no fault of the tensor that happens to be
// looked at first.
Origin origin_of(std::string_view kind, const AroundBad& around);

}  // namespace trainmon
