// The sum over a tensor is linear, so the sum of the mean is the mean of the sums; likewise its
// sketch. Each element of a mean of n is rounded less than n times, by at most u of what was
// added. So the bound holds for any order in which a collective adds.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"
#include "detect/checks.h"
#include "model/rounding.h"

namespace trainmon::detect {
namespace {

struct Reduction {
  std::uint32_t tensor = 0;
  Evidence evidence = Evidence::statistics;
  Linear mean;         // of the unreduced gradients
  double bound = 0.0;  // of the rounding of a reduced one
};

// Of each tensor that has an unreduced gradient of every rank, by optimizer. Where nothing says how
// those of ranks relate, as behind a communication hook that is not known, there is no equation.
std::map<std::int32_t, std::vector<Reduction>> reductions(const Window& window) {
  std::map<std::int32_t, std::vector<Reduction>> all;
  const double count = static_cast<double>(window.ranks.size());
  for (std::uint32_t tensor = 0; tensor < window.tensors.size(); ++tensor) {
    const auto parts = window.now.of(tensor, Quantity::grad_unreduced);
    if (parts.size() != window.ranks.size()) continue;
    if (!std::ranges::all_of(parts, &Observation::is_finite)) continue;
    if (std::ranges::any_of(parts, &Observation::is_independent)) continue;
    Reduction one;
    one.tensor = tensor;
    std::vector<const Observation*> all_of_it = window.now.of(tensor, Quantity::grad_reduced);
    all_of_it.insert(all_of_it.end(), parts.begin(), parts.end());
    one.evidence = evidence_of_sums(all_of_it);
    for (const Observation* part : parts) one.mean.add(1.0 / count, part->linear(one.evidence));
    const DType dtype = parts.front()->dtype;
    one.bound = (count + 2.0) * unit_roundoff(dtype) * one.mean.size + one.mean.stored +
                parts.front()->count * count * smallest_normal(dtype) * unit_roundoff(dtype);
    all[window.tensors[tensor].optimizer].push_back(one);
  }
  return all;
}

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

// A number that a person writes: of at most two digits.
bool is_round(double value, double tolerance) {
  if (value == 0.0 || !std::isfinite(value)) return false;
  const double unit = std::pow(10.0, std::floor(std::log10(value)) - 1.0);
  return std::abs(value - std::round(value / unit) * unit) <= tolerance * value;
}

// Clipped by value, or each tensor by its own norm: its largest element or its norm is then the
// limit, which is a round number. One factor of all tensors does not hold for it.
bool may_be_clipped_alone(const Observation& reduced) {
  // Of a norm the function that clips keeps a little away from zero.
  return is_round(reduced.absmax, 1e-6) || is_round(reduced.norm(), 1e-4);
}

// A factor by which gradients of one rank were clipped, and how far that may be off.
struct Scale {
  double factor = 1.0;
  double error = 0.0;
};

// A reduced gradient that is off on one rank, and by how much.
struct Off {
  const Observation* reduced;
  double value = 0.0;
  double bound = 0.0;
  bool is_within() const { return value <= bound; }
};

Off off_by(const Observation& reduced, const Reduction& one, const Scale& scale) {
  const double bound = bound_of(reduced, one, scale.factor) + scale.error * one.mean.norm();
  return {&reduced, residual(reduced, one, scale.factor), bound};
}

// By the factor that explains it best.
Off nearest_of(const Observation& reduced, const Reduction& one, const std::vector<Scale>& scales) {
  std::optional<Off> nearest;
  for (const Scale& scale : scales) {
    const Off off = off_by(reduced, one, scale);
    if (!nearest || off.value * nearest->bound < nearest->value * off.bound) nearest = off;
  }
  return *nearest;
}

// By which a reduced gradient is scaled.
Scale own_scale(const Observation& reduced, const Reduction& one) {
  Scale scale;
  scale.factor = one.mean.dot(reduced.linear(one.evidence)) / one.mean.dot(one.mean);
  scale.error = bound_of(reduced, one, std::abs(scale.factor)) / one.mean.norm();
  return scale;
}

bool is_clipping(double factor) {
  return factor > 0.0 && factor < 1.0;
}

struct Clipped {
  const Reduction* mean;
  const Observation* reduced;
};

// The factor of most tensors: the median.
Scale common_scale(const std::vector<Clipped>& all) {
  std::vector<double> factors;
  double error = 1.0;  // of the tensor that tells it best
  for (const Clipped& one : all) {
    const double size = one.mean->mean.norm();
    if (size != 0.0) error = std::min(error, one.mean->bound / size);
    if (size > 8.0 * one.mean->bound) {
      factors.push_back(own_scale(*one.reduced, *one.mean).factor);
    }
  }
  if (factors.empty()) return {};
  const auto middle = factors.begin() + std::ssize(factors) / 2;
  std::nth_element(factors.begin(), middle, factors.end());
  return {*middle, 4.0 * error * std::max(1.0, *middle)};
}

// The tensors of one rank that one factor may explain.
std::vector<Clipped> scaled_of(const Window& window, const std::vector<Reduction>& all,
                               std::int32_t rank) {
  std::vector<Clipped> scaled;
  for (const Reduction& one : all) {
    const Observation* const reduced = window.now.find(one.tensor, Quantity::grad_reduced, rank);
    if (reduced == nullptr || !reduced->is_finite || may_be_clipped_alone(*reduced)) continue;
    scaled.push_back({&one, reduced});
  }
  return scaled;
}

// All by which tensors of one rank may have been clipped. A tensor may be clipped by none, with
// most of them, or in a group of its own, of two tensors at the least. What one tensor has for
// itself is no clipping.
std::vector<Scale> scales_of(std::vector<Clipped> left) {
  constexpr int kMostTried = 16;  // people clip few groups
  const Scale common = common_scale(left);
  std::vector<Scale> scales = {Scale{}, is_clipping(common.factor) ? common : Scale{}};
  std::erase_if(left, [&](const Clipped& one) {
    return nearest_of(*one.reduced, *one.mean, scales).is_within();
  });
  std::vector<Scale> own;
  for (const Clipped& one : left) {
    const Scale scale = own_scale(*one.reduced, *one.mean);
    if (is_clipping(scale.factor)) own.push_back({scale.factor, 4.0 * scale.error});
  }
  std::ranges::sort(own, {}, &Scale::error);
  if (own.size() > kMostTried) own.resize(kMostTried);
  for (const Scale& scale : own) {
    const auto is_explained = [&](const Clipped& one) {
      return off_by(*one.reduced, *one.mean, scale).is_within();
    };
    if (std::ranges::count_if(left, is_explained) < 2) continue;
    scales.push_back(scale);
    std::erase_if(left, is_explained);
  }
  return scales;
}

constexpr const char* kNotTheMean = "the reduced gradient is not the mean of the unreduced ones";

bool are_alike(const std::vector<Off>& off) {
  return std::ranges::all_of(
      off, [&](const Off& one) { return are_equal(*one.reduced, *off.front().reduced); });
}

// The one rank whose gradient is what all lack; -1 where none is, or several could be.
std::int32_t missing_rank(const Window& window, const Reduction& one, const Observation& reduced,
                          const std::vector<Scale>& scales) {
  const double count = static_cast<double>(window.ranks.size());
  std::int32_t rank = -1;
  for (const Scale& scale : scales) {
    Linear lacks;
    lacks.add(count, one.mean).add(-count / scale.factor, reduced.linear(one.evidence));
    const double bound = count * off_by(reduced, one, scale).bound / scale.factor;
    for (const Observation* part : window.now.of(one.tensor, Quantity::grad_unreduced)) {
      const Linear left = Linear(lacks).add(-1.0, part->linear(one.evidence));
      if (left.norm() > bound || rank == part->rank) continue;
      if (rank >= 0) return -1;
      rank = part->rank;
    }
  }
  return rank;
}

// `first` is the finding of the first rank.
void report(const Window& window, const Reduction& one, const std::vector<Off>& off,
            const std::vector<Scale>& scales, const Finding& first, Findings& found) {
  const Off& worst = *std::ranges::max_element(off, {}, &Off::value);
  Finding finding = first;
  finding.ranks.clear();
  finding.value = worst.value;
  finding.bound = worst.bound;
  finding.evidence = one.evidence;
  finding.text = kNotTheMean;
  for (const Off& each : off) finding.ranks.push_back(each.reduced->rank);
  if (off.size() == window.ranks.size() && are_alike(off)) {
    const std::int32_t missing = missing_rank(window, one, *off.front().reduced, scales);
    if (missing >= 0) {
      finding.ranks = {missing};
      finding.text =
          "the reduced gradient lacks the contribution of rank " + std::to_string(missing);
    }
  }
  found.add(std::move(finding));
}

}  // namespace

struct Reductions::Group {
  std::int32_t optimizer;
  const std::vector<Reduction>& all;
  std::vector<std::uint32_t> tensors;
};

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
  if (before.factor > kUnscaled || before.norm == 0.0 || error > kKnown * now.factor) return false;
  const auto is_norm = [&](double norm) { return std::abs(now.norm - norm) <= kOtherNorm * norm; };
  const auto was_norm = [&](double norm) {
    return std::abs(before.norm - norm) <= kOtherNorm * norm;
  };
  if (std::abs(now.factor - before.factor) > error) {
    if (is_norm(before.norm)) seen.limit = now.norm;
    seen.is_free |= !is_norm(before.norm) && !is_norm(seen.limit) && !was_norm(seen.limit);
    seen.alike = 0;
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
  const std::vector<Clipped> all = scaled_of(window, group.all, rank);
  const auto are_explained = [&](const Scale& scale) {
    return std::ranges::all_of(all, [&](const Clipped& one) {
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
    one.evidence = group.all.front().evidence;
  }
  for (auto& [text, one] : scaled) found.add(std::move(one));
}

void Reductions::check(const Window& window, Findings& found) {
  if (window.ranks.size() < 2) return;
  for (const auto& [optimizer, all] : reductions(window)) {
    Group group{optimizer, all, {}};
    for (const Reduction& one : all) group.tensors.push_back(one.tensor);
    check(window, group, found);
  }
}

void Reductions::check(const Window& window, const Group& group, Findings& found) {
  std::vector<std::vector<Scale>> scales;
  std::vector<bool> are_meant;
  for (const std::int32_t rank : window.ranks) {
    scales.push_back(scales_of(scaled_of(window, group.all, rank)));
    are_meant.push_back(is_meant(window, group, rank, found));
  }
  // By the factor of most tensors, where it is that of most.
  struct Explained {
    int of = 0, by = 0;
    double squares = 0.0;
  };
  std::vector<Explained> explained(window.ranks.size());
  for (const Reduction& one : group.all) {
    std::vector<Off> off;
    std::optional<Finding> first;
    for (std::size_t r = 0; r < window.ranks.size(); ++r) {
      const Observation* reduced =
          window.now.find(one.tensor, Quantity::grad_reduced, window.ranks[r]);
      if (reduced == nullptr || !reduced->is_finite || !reduced->is_replicated) continue;
      ++explained[r].of;
      explained[r].by += off_by(*reduced, one, scales[r][1]).is_within() ? 1 : 0;
      explained[r].squares += reduced->sum_sq;
      if (may_be_clipped_alone(*reduced)) continue;
      found.checked(Check::reduce, one.evidence);
      if (are_meant[r]) continue;
      const Off nearest = nearest_of(*reduced, one, scales[r]);
      auto finding =
          window.result(Check::reduce, Stage::grad_reduced, *reduced, nearest.is_within());
      if (!finding) continue;
      off.push_back(nearest);
      if (!first || finding->certain) first = finding;
    }
    if (first) report(window, one, off, scales.front(), *first, found);
  }
  std::vector<Scaled> factors;
  for (std::size_t r = 0; r < window.ranks.size(); ++r) {
    const auto [of, by, squares] = explained[r];
    const Scale& scale = scales[r][1];
    const bool is_known = of > 1 && 2 * by > of;
    factors.push_back({scale.factor, scale.factor * scale.error,
                       is_known ? std::sqrt(squares) : 0.0, window.now.step});
  }
  check_factors(window, factors, group, found);
}

}  // namespace trainmon::detect
