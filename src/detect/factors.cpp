// Factors that the gradients of a rank have in common, step after step. Clipping leaves one norm,
// and what a training multiplies them by varies. What begins and stays is a fault.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "base/text.h"
#include "detect/reduction.h"

namespace trainmon::detect {

// Clipping by a norm leaves one norm: gradients of another norm have another factor.
bool Reductions::is_no_clipping(Seen& seen, const Scaled& now) {
  constexpr int kAlike = 3;  // pairs of steps
  // What is nearer to 1 may be rounding.
  constexpr double kUnscaled = 0.99, kOtherNorm = 1e-3, kKnown = 1e-4;
  const Scaled before = std::exchange(seen.last, now);
  if (now.factor > kUnscaled) {
    seen.alike = 0;
    seen.has_held = true;
    return false;
  }
  const double error = now.error + before.error;
  if (before.factor > kUnscaled) seen.backwards = before.backwards;
  if (before.factor > kUnscaled || before.norm == 0.0 || error > kKnown * now.factor) return false;
  const auto is_norm = [&](double norm) { return std::abs(now.norm - norm) <= kOtherNorm * norm; };
  const auto was_norm = [&](double norm) {
    return std::abs(before.norm - norm) <= kOtherNorm * norm;
  };
  if (std::abs(now.factor - before.factor) > error) {
    if (is_norm(before.norm)) seen.limit = now.norm;
    seen.is_free |= !is_norm(before.norm) && !is_norm(seen.limit) && !was_norm(seen.limit);
    seen.alike = 0;
    seen.backwards = before.backwards;
    seen.has_held = true;
    return false;
  }
  if (is_norm(before.norm)) return false;
  if (seen.alike++ == 0) {
    seen.since = before.step;
    seen.held_before = seen.has_held && !seen.is_free;
  }
  return seen.alike == kAlike && !std::exchange(seen.is_said, true);
}

// One factor above 1. It is certain where none of the steps before had one, until a later step has
// another one, or has one again.
bool Reductions::is_meant(const Window& window, const Group& group, std::int32_t rank,
                          Findings& found) {
  constexpr int kPlain = 3, kConstant = 4;  // steps
  const std::vector<ScaledTensor> all = scaled_of(window, group.all, rank);
  const auto are_explained = [&](const Scale& scale) {
    return std::ranges::all_of(all, [&](const ScaledTensor& one) {
      return off_by(*one.reduced, *one.mean, scale).is_within();
    });
  };
  Grown& grown = grown_[{rank, group.optimizer}];
  if (all.size() < 2) return false;
  if (are_explained(Scale{})) {
    ++grown.plain;
    grown.alike = 0;
    return false;
  }
  const Scale scale = common_scale(all);
  if (!(scale.factor > 1.0) || !are_explained(scale)) return false;
  const bool is_first = grown.factor == 0.0;
  const bool is_other = std::abs(scale.factor - grown.factor) > scale.error + grown.error;
  if (is_first && grown.plain < kPlain) grown.is_meant = true;
  if (!is_first && (is_other || grown.alike == 0)) {
    grown.is_meant = true;
    for (const Finding& one : grown.certain) {
      found.doubt(
          one, rank,
          "all gradients of some steps are multiplied by one number, which a training may do");
      grown.is_said = true;
    }
    grown.certain.clear();
  }
  grown.factor = scale.factor;
  grown.error = scale.error;
  // What goes on with one factor is no matter of single steps.
  if (++grown.alike == kConstant) grown.certain.clear();
  Finding finding = window.finding(Check::reduce, Stage::grad_reduced, rank, group.tensors);
  finding.evidence = group.all.front().evidence;
  if (!grown.is_meant) {
    finding.text = kNotTheMean;
    if (grown.alike < kConstant) grown.certain.push_back(std::move(finding));
    return false;
  }
  if (!std::exchange(grown.is_said, true)) {
    finding.certain = false;
    finding.text = "all gradients are " + number_text(scale.factor, 3) +
                   " times the mean, which a training may do to them";
    found.add(std::move(finding));
  }
  return true;
}

bool Reductions::is_of_backwards(const Scaled& one) {
  return std::abs(one.factor * one.backwards - 1.0) <= one.error * one.backwards;
}

void Reductions::check_factors(const Window& window, const std::vector<Scaled>& factors,
                               const Group& group, Findings& found) {
  std::map<std::string, Finding> scaled;  // by text
  for (std::size_t r = 0; r < factors.size(); ++r) {
    const Place place(window.ranks[r], group.optimizer);
    Seen& seen = seen_[place];
    if (factors[r].norm == 0.0 || !is_no_clipping(seen, factors[r])) continue;
    const std::string text = "all gradients are " + number_text(factors[r].factor, 3) +
                             " times the mean in each step, which clipping by a norm does not do";
    const auto [at, is_new] = scaled.try_emplace(text);
    Finding& one = at->second;
    if (is_new) {
      one = window.finding(Check::reduce, Stage::grad_reduced, window.ranks[r], group.tensors);
    }
    if (!is_new) one.ranks.push_back(window.ranks[r]);
    one.step = seen.since;
    one.certain = seen.held_before && !grown_[place].is_meant;
    one.text = text;
    if (seen.backwards != factors[r].backwards && is_of_backwards(factors[r])) {
      one.certain = false;
      one.text += "; as many backwards add up since then, and a program may divide by their number";
    }
    one.evidence = group.all.front().evidence;
  }
  for (auto& [text, one] : scaled) found.add(std::move(one));
}

}  // namespace trainmon::detect
