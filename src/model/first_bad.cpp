// A fault of the backward passes on to the parameters before it, one of the loss to all of them.
#include "model/first_bad.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <tuple>

#include "base/text.h"
#include "model/kinds.h"

namespace trainmon {

int moment_of(std::string_view kind) {
  if (kind == kind::kParamOrigin) return 0;
  if (kind == kind::kInput || kind == kind::kInputEntropy) return 1;
  if (kind == kind::kActv || kind == kind::kBuffer || is_canary(kind)) return 1;
  if (kind == kind::kActvRecomputed || kind == kind::kActvGrad || kind == kind::kGradUnreduced ||
      kind == kind::kGradMicro) {
    return 2;
  }
  if (kind == kind::kCc) return 3;
  if (kind == kind::kGradReduced || kind == kind::kMgDirection) return 4;
  if (kind == kind::kParamUpdated) return 6;
  return 5;
}

bool is_parameter_gradient(std::string_view kind) {
  return kind == kind::kGradUnreduced || kind == kind::kGradMicro || kind == kind::kGradReduced;
}

bool is_gradient(std::string_view kind) {
  return is_parameter_gradient(kind) || kind == kind::kActvGrad || kind == kind::kCc;
}

bool may_be_why_skipped(std::string_view kind, double loss_scale) {
  const bool is_of_forward =
      kind == kind::kActv || kind == kind::kActvRecomputed || kind == kind::kInput;
  return is_gradient(kind) || (is_of_forward && loss_scale == 1.0);
}

void BadCount::add(bool is_bad, std::uint64_t seq, std::string_view name) {
  ++rows;
  if (!is_bad) return;
  ++bad;
  if (seq < last_seq) return;
  last_seq = seq;
  last_bad = name;
}

void BadCount::add(const BadCount& others) {
  rows += others.rows;
  bad += others.bad;
}

BadPlace bad_place(std::string_view kind, std::int32_t accum, std::uint64_t seq,
                   const Outcome& outcome) {
  BadPlace place;
  place.is_routine = outcome.fate == Fate::skipped && may_be_why_skipped(kind, outcome.loss_scale);
  place.step = outcome.step;
  const bool is_logged = kind == kLogged;
  place.attempt = is_logged ? std::numeric_limits<std::int32_t>::max() : outcome.attempt;
  place.moment = moment_of(kind);
  place.accum = place.moment == 0 ? -1 : accum;
  place.seq = seq;
  return place;
}

bool comes_before(const BadPlace& a, int optimizer_of_a, const BadPlace& b, int optimizer_of_b) {
  if (optimizer_of_a == optimizer_of_b) return a < b;
  return std::tie(a.is_routine, a.seq) < std::tie(b.is_routine, b.seq);
}

std::string gap_text(std::int64_t bad_step) {
  return "step " + std::to_string(bad_step - 1) +
         " was not recorded: what went wrong may have begun before step " +
         std::to_string(bad_step);
}

bool is_loss(std::string_view name) {
  constexpr std::string_view kLoss = "loss";
  return std::search(name.begin(), name.end(), kLoss.begin(), kLoss.end(), [](char a, char b) {
           return std::tolower(static_cast<unsigned char>(a)) == b;
         }) != name.end();
}

void add_loss(std::optional<double>& loss, double value) {
  if (!loss || std::isfinite(*loss)) loss = value;
}

bool is_bad_setting(const DeclaredValue& value) {
  return value.type == DeclaredValue::Type::number && std::isnan(value.number);
}

std::string setting_text(const DeclaredValue& value, std::int32_t group, std::int64_t step) {
  return value.name + " of group " + std::to_string(group) + " is nan from step " +
         std::to_string(step) + " on";
}

Origin origin_of(std::string_view kind, const AroundBad& around) {
  if (kind == kind::kInput) {
    return {"the data", "the model was given it in its batch",
            "none of the model: look at the batch, and at what makes it"};
  }
  if (!around.setting.empty()) return {"the settings of the optimizer", around.setting, ""};
  const int moment = moment_of(kind);
  const bool is_bad_loss = around.loss && !std::isfinite(*around.loss);
  const bool are_most_bad = around.gradients.rows > 1 &&
                            2 * around.gradients.bad > around.gradients.rows && is_gradient(kind);
  const bool is_good_loss = around.loss && !is_bad_loss;
  // Of one tensor alone the fault may be in the product that makes its gradient.
  const bool passed = around.passed.rows > 0 && around.passed.bad == 0 && are_most_bad;
  const bool is_local_good = around.local.rows > 0 ? around.local.bad == 0 : passed;
  if (kind == kind::kGradReduced && is_local_good) {
    return {"another rank, or what changes gradients between the backward and the step",
            around.local.rows > 0
                ? "all " + grouped(around.local.rows) + " gradients of this rank were finite before"
                : "all " + grouped(around.passed.rows) +
                      " recorded gradients of activations were finite",
            ""};
  }
  const bool is_whole = around.gradients.bad == around.gradients.rows;
  const std::string counted = grouped(around.gradients.bad) + " of " +
                              grouped(around.gradients.rows) +
                              " gradients of its backward are not finite";
  const std::string logged =
      around.loss ? "the logged loss is " + number_text(*around.loss, 6) : std::string();
  // Reduced gradients are read in the order of parameters, which a backward runs through in
  // reverse: the first row is where the fault went to.
  if (kind == kind::kGradReduced && around.gradients.bad > 1 && !is_whole && !is_bad_loss &&
      (is_good_loss || !are_most_bad)) {
    return {"the backward", counted + (logged.empty() ? "" : ", ") + logged,
            "near " + around.gradients.last_bad +
                ", the last of them, for a backward begins at the last parameter; "
                "kinds=[\"grads\", \"activations\"] names it"};
  }
  // With a good loss the fault is of the backward; it is told only where it reached all.
  if (moment <= 1 || !(is_bad_loss || (are_most_bad && (!is_good_loss || is_whole)))) return {};
  Origin origin;
  const bool is_clipped = kind == kind::kGradReduced;  // may be
  origin.place = is_good_loss
                     ? (is_clipped ? "the backward, or clipping" : "the backward of the loss")
                 : is_bad_loss ? "the forward or the loss"
                 : !is_whole   ? "the forward, the loss or the backward of late modules"
                 : is_clipped  ? "the forward, the loss or clipping"
                               : "the forward or the loss";
  if (are_most_bad) origin.why = counted;
  if (!logged.empty()) origin.why += (origin.why.empty() ? "" : ", ") + logged;
  if (is_good_loss && is_clipped) {
    origin.module =
        "not known: clipping by the norm makes all gradients bad where one is; "
        "kinds=[\"grad_unreduced\"] shows them before it";
  } else if (is_good_loss) {
    origin.module = "look at the loss and the last modules";
  } else if (around.activations > 0) {
    origin.module =
        "no recorded activation is bad: look at the loss and at modules that are not "
        "recorded";
  } else {
    origin.module =
        "not known, for activations are not recorded: kinds=[\"grads\", \"activations\"] names it";
  }
  return origin;
}

}  // namespace trainmon
