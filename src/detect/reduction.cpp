// The sum over a tensor is linear, so the sum of the mean is the mean of the sums; likewise its
// sketch. Each element of a mean of n is rounded less than n times, by at most u of what was
// added. So the bound holds for any order in which a collective adds.
#include "detect/reduction.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "model/rounding.h"

namespace trainmon::detect {
namespace {

double residual(const Observation& reduced, const Reduction& one, double factor) {
  return reduced.linear(one.evidence).add(-factor, one.mean).norm();
}

double bound_of(const Observation& reduced, const Reduction& one, double factor) {
  // The multiplication by the factor rounds once more. Below the smallest normal number it does
  // so by half of the distance that numbers have there. A factor that an infinity made small
  // leads there.
  const double unit = unit_roundoff(reduced.dtype);
  const Linear linear = reduced.linear(one.evidence);
  return factor * one.bound + 2.0 * unit * linear.size + linear.stored +
         reduced.count * 2.0 * unit * smallest_normal(reduced.dtype);
}

bool are_equally_large(const std::vector<const Observation*>& all) {
  return std::ranges::all_of(
      all, [&](const Observation* one) { return one->count == all.front()->count; });
}

// Without earlier micro steps.
std::optional<Reduction> reduction_of(const Window& window, std::uint32_t tensor) {
  const auto parts = window.now.of(tensor, Quantity::grad_unreduced);
  if (parts.size() != window.ranks.size()) return std::nullopt;
  if (!std::ranges::all_of(parts, &Observation::is_finite)) return std::nullopt;
  if (std::ranges::any_of(parts, &Observation::is_independent)) return std::nullopt;
  Reduction one;
  one.tensor = tensor;
  const auto reduced = window.now.of(tensor, Quantity::grad_reduced);
  if (std::ranges::none_of(reduced, &Observation::is_replicated)) {
    if (!are_equally_large(parts)) return std::nullopt;
    one.gathered = gathered(reduced, parts.front()->count);
    if (!one.gathered) return std::nullopt;
  }
  take_mean(window, one);
  return one;
}

// Of these unreduced gradients.
void take_mean_of(const Window& window, Reduction& one,
                  const std::vector<const Observation*>& rows) {
  std::vector<const Observation*> all = window.now.of(one.tensor, Quantity::grad_reduced);
  if (one.gathered) all = {&one.gathered->whole};
  all.insert(all.end(), rows.begin(), rows.end());
  one.evidence = evidence_of_sums(all);
  const double ranks = static_cast<double>(window.ranks.size());
  const double micro_steps = static_cast<double>(rows.size()) / ranks;
  one.mean = {};
  for (const Observation* row : rows) one.mean.add(1.0 / ranks, row->linear(one.evidence));
  const Observation& first = *rows.front();
  // Means of micro steps add up in the dtype of the reduced gradient.
  const double unit =
      std::max(unit_roundoff(first.dtype),
               micro_steps > 1.0 && one.gathered ? unit_roundoff(one.gathered->whole.dtype) : 0.0);
  one.bound =
      (ranks + micro_steps + 1.0) * unit * one.mean.size + one.mean.stored +
      first.count * ranks * micro_steps * smallest_normal(first.dtype) * unit_roundoff(first.dtype);
}

}  // namespace

void take_mean(const Window& window, Reduction& one) {
  std::vector<const Observation*> rows = window.now.of(one.tensor, Quantity::grad_unreduced);
  if (one.adds_up) {
    for (const Observation& earlier : window.now.earlier(one.tensor)) rows.push_back(&earlier);
  }
  take_mean_of(window, one, rows);
}

bool is_of_earlier(const Window& window, const Reduction& one, const Observation& reduced) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<const Observation*>> of_backwards;
  for (const Observation& row : window.now.given_up(one.tensor)) {
    of_backwards[{row.attempt, row.accum}].push_back(&row);
  }
  if (of_backwards.empty()) return false;
  std::vector<const Observation*> all = window.now.of(one.tensor, Quantity::grad_unreduced);
  for (const Observation* last : window.now.of(one.tensor, Quantity::grad_unreduced)) {
    const auto known = of_backwards.find({last->attempt, last->accum});
    if (known != of_backwards.end()) known->second.push_back(last);
  }
  for (const Observation& row : window.now.given_up(one.tensor)) all.push_back(&row);
  const auto explains = [&](const std::vector<const Observation*>& rows) {
    if (rows.size() % window.ranks.size() != 0 ||
        !std::ranges::all_of(rows, &Observation::is_finite)) {
      return false;
    }
    Reduction earlier = one;
    take_mean_of(window, earlier, rows);
    if (off_by(reduced, earlier, {}).is_within()) return true;
    // One sum is nearly always a multiple of another one, and so is one element.
    constexpr double kFewElements = 8.0;
    const Scale own = own_scale(reduced, earlier);
    return earlier.evidence != Evidence::statistics && reduced.count >= kFewElements &&
           is_clipping(own.factor) && off_by(reduced, earlier, own).is_within();
  };
  return explains(all) || std::ranges::any_of(of_backwards, [&](const auto& backward) {
           return backward.second.size() == window.ranks.size() && explains(backward.second);
         });
}

const Observation* Reduction::reduced(const Window& window, std::int32_t rank) const {
  if (gathered) return &gathered->whole;
  const Observation* const one = window.now.find(tensor, Quantity::grad_reduced, rank);
  return one != nullptr && one->is_finite && one->is_replicated ? one : nullptr;
}

std::vector<std::pair<std::int32_t, Linear>> Reduction::contributions(const Window& window) const {
  std::vector<std::pair<std::int32_t, Linear>> all;
  for (const Observation* last : window.now.of(tensor, Quantity::grad_unreduced)) {
    all.emplace_back(last->rank, last->linear(evidence));
  }
  if (!adds_up) return all;
  std::map<std::int32_t, Linear> of_ranks(all.begin(), all.end());
  for (const Observation& one : window.now.earlier(tensor)) {
    all.emplace_back(one.rank, one.linear(evidence));
    of_ranks[one.rank].add(1.0, all.back().second);
  }
  all.insert(all.end(), of_ranks.begin(), of_ranks.end());
  return all;
}

namespace {

// Whether a rank may lack rows of the last micro step of a tensor. They were lost, or it was paused
// in the middle of the step and has no row of what the optimizer takes.
bool may_lack_micro_steps(const Window& window, std::uint32_t tensor) {
  std::int32_t last = 0;  // of any rank
  for (const Observation* one : window.now.of(tensor, Quantity::grad_reduced)) {
    last = std::max(last, one->accum);
  }
  return std::ranges::any_of(window.ranks, [&](std::int32_t rank) {
    const Observation* const own = window.now.find(tensor, Quantity::grad_unreduced, rank);
    const bool has_reduced = window.now.find(tensor, Quantity::grad_reduced, rank) != nullptr;
    const bool may_lack = window.lossy.contains(rank) || !has_reduced;
    return may_lack && (own == nullptr || own->accum < last);
  });
}

}  // namespace

std::map<std::int32_t, std::vector<Reduction>> reductions(const Window& window,
                                                          ReducedMicroSteps& known) {
  std::map<std::int32_t, std::vector<Reduction>> all;
  for (const std::uint32_t tensor : window.now.tensors()) {
    if (may_lack_micro_steps(window, tensor)) continue;
    std::optional<Reduction> one = reduction_of(window, tensor);
    if (one) all[window.tensors[tensor].optimizer].push_back(std::move(*one));
  }
  for (auto& [optimizer, of_it] : all) settle_micro_steps(window, of_it, known);
  return all;
}

Off off_by(const Observation& reduced, const Reduction& one, const Scale& scale) {
  const double bound = bound_of(reduced, one, scale.factor) + scale.error * one.mean.norm();
  return {&reduced, residual(reduced, one, scale.factor), bound};
}

Off nearest_of(const Observation& reduced, const Reduction& one, const std::vector<Scale>& scales) {
  std::optional<Off> nearest;
  for (const Scale& scale : scales) {
    const Off off = off_by(reduced, one, scale);
    if (!nearest || off.value * nearest->bound < nearest->value * off.bound) nearest = off;
  }
  return *nearest;
}

Scale own_scale(const Observation& reduced, const Reduction& one) {
  Scale scale;
  scale.factor = one.mean.dot(reduced.linear(one.evidence)) / one.mean.dot(one.mean);
  scale.error = bound_of(reduced, one, std::abs(scale.factor)) / one.mean.norm();
  return scale;
}

bool is_clipping(double factor) {
  return factor > 0.0 && factor < 1.0;
}

bool may_be_clipped_alone(const Observation& reduced, const Reduction& one) {
  // Of a norm the function that clips keeps a little away from zero.
  constexpr double kAway = 1e-4;
  if (is_round(reduced.absmax, 1e-6)) return true;
  if (!is_round(reduced.norm(), kAway)) return false;
  const Scale own = own_scale(reduced, one);
  const double digits = std::log10(reduced.norm());
  return off_by(reduced, one, own).is_within() &&
         (is_clipping(own.factor) || std::abs(digits - std::round(digits)) < kAway);
}

// Each tensor tells the factor within its own rounding. The one that tells it best counts, unless
// it is one that most others contradict.
Scale common_scale(const std::vector<ScaledTensor>& all) {
  std::vector<Scale> told;
  for (const ScaledTensor& one : all) {
    if (one.mean->mean.norm() > 0.0) told.push_back(own_scale(*one.reduced, *one.mean));
  }
  std::ranges::sort(told, {}, &Scale::error);
  for (const Scale& best : told) {
    if (!best.is_told()) continue;
    const auto agree = std::ranges::count_if(told, [&](const Scale& one) {
      return std::abs(one.factor - best.factor) <= one.error + best.error;
    });
    if (2 * agree > std::ssize(told)) return {best.factor, 2.0 * best.error};
  }
  return {};
}

std::vector<ScaledTensor> scaled_of(const Window& window, const std::vector<Reduction>& all,
                                    std::int32_t rank) {
  std::vector<ScaledTensor> scaled;
  for (const Reduction& one : all) {
    const Observation* const reduced = one.reduced(window, rank);
    if (reduced == nullptr || may_be_clipped_alone(*reduced, one)) continue;
    scaled.push_back({&one, reduced});
  }
  return scaled;
}

std::vector<Scale> scales_of(std::vector<ScaledTensor> left) {
  constexpr int kMostTried = 16;  // people clip few groups
  const Scale common = common_scale(left);
  std::vector<Scale> scales = {Scale{}, is_clipping(common.factor) ? common : Scale{}};
  std::erase_if(left, [&](const ScaledTensor& one) {
    return nearest_of(*one.reduced, *one.mean, scales).is_within();
  });
  std::vector<Scale> own;
  for (const ScaledTensor& one : left) {
    const Scale scale = own_scale(*one.reduced, *one.mean);
    if (scale.is_told() && is_clipping(scale.factor)) {
      own.push_back({scale.factor, 4.0 * scale.error});
    }
  }
  std::ranges::sort(own, {}, &Scale::error);
  if (own.size() > kMostTried) own.resize(kMostTried);
  for (const Scale& scale : own) {
    const auto is_explained = [&](const ScaledTensor& one) {
      return off_by(*one.reduced, *one.mean, scale).is_within();
    };
    if (std::ranges::count_if(left, is_explained) < 2) continue;
    scales.push_back(scale);
    std::erase_if(left, is_explained);
  }
  return scales;
}

}  // namespace trainmon::detect
