// The sum over a tensor is linear, so the sum of the mean is the mean of the sums; likewise its
// sketch. Each element of a mean of n is rounded less than n times, by at most u of what was added:
// so the bound holds for any order in which a collective adds.
#include <algorithm>
#include <cmath>
#include <optional>

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

// Of each tensor that has an unreduced gradient of every rank.
std::vector<Reduction> reductions(const Window& window) {
  std::vector<Reduction> all;
  const double count = static_cast<double>(window.ranks.size());
  for (std::uint32_t tensor = 0; tensor < window.tensors.size(); ++tensor) {
    const auto parts = window.now.of(tensor, Quantity::grad_unreduced);
    if (parts.size() != window.ranks.size()) continue;
    if (!std::ranges::all_of(parts, &Observation::is_finite)) continue;
    Reduction one;
    one.tensor = tensor;
    std::vector<const Observation*> all_of_it = window.now.of(tensor, Quantity::grad_reduced);
    all_of_it.insert(all_of_it.end(), parts.begin(), parts.end());
    one.evidence = evidence_of_sums(all_of_it);
    for (const Observation* part : parts) one.mean.add(1.0 / count, part->linear(one.evidence));
    const DType dtype = parts.front()->dtype;
    one.bound = (count + 2.0) * unit_roundoff(dtype) * one.mean.size + one.mean.stored +
                parts.front()->count * count * smallest_normal(dtype) * unit_roundoff(dtype);
    all.push_back(one);
  }
  return all;
}

double residual(const Observation& reduced, const Reduction& one, double factor) {
  return reduced.linear(one.evidence).add(-factor, one.mean).norm();
}

double bound_of(const Observation& reduced, const Reduction& one, double factor) {
  // The multiplication by the factor rounds once more, below the smallest normal number by half of
  // the distance that numbers have there: a factor that an infinity made small leads to it.
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

// The factor of clipping of one rank, at most 1: the median over all tensors.
double factor_of(const Window& window, const std::vector<Reduction>& all, std::int32_t rank) {
  std::vector<double> ratios;
  for (const Reduction& one : all) {
    const Observation* reduced = window.now.find(one.tensor, Quantity::grad_reduced, rank);
    if (reduced == nullptr || !reduced->is_finite || may_be_clipped_alone(*reduced)) continue;
    if (one.mean.norm() <= 8.0 * one.bound) continue;
    ratios.push_back(one.mean.dot(reduced->linear(one.evidence)) / one.mean.dot(one.mean));
  }
  if (ratios.empty()) return 1.0;
  const auto middle = ratios.begin() + std::ssize(ratios) / 2;
  std::nth_element(ratios.begin(), middle, ratios.end());
  return *middle > 0.0 && *middle < 1.0 ? *middle : 1.0;
}

// How far that may be off: by the rounding of the tensor that tells it best.
double factor_error(const std::vector<Reduction>& all) {
  double least = 1.0;
  for (const Reduction& one : all) {
    const double size = one.mean.norm();
    if (size != 0.0) least = std::min(least, one.bound / size);
  }
  return least;
}

// A reduced gradient that is off on one rank, and by how much.
struct Off {
  const Observation* reduced;
  double value = 0.0;
  double bound = 0.0;
  double factor = 1.0;
};

bool are_alike(const std::vector<Off>& off) {
  return std::ranges::all_of(
      off, [&](const Off& one) { return are_equal(*one.reduced, *off.front().reduced); });
}

// The one rank whose gradient is what all lack; -1 where none is, or several could be.
std::int32_t missing_rank(const Window& window, const Reduction& one, const Off& off) {
  const double count = static_cast<double>(window.ranks.size());
  Linear lacks;
  lacks.add(count, one.mean).add(-count / off.factor, off.reduced->linear(one.evidence));
  std::int32_t rank = -1;
  for (const Observation* part : window.now.of(one.tensor, Quantity::grad_unreduced)) {
    const Linear left = Linear(lacks).add(-1.0, part->linear(one.evidence));
    if (left.norm() > count * off.bound / off.factor) continue;
    if (rank >= 0) return -1;
    rank = part->rank;
  }
  return rank;
}

// `first` is the finding of the first rank.
void report(const Window& window, const Reduction& one, const std::vector<Off>& off,
            const Finding& first, Findings& found) {
  const Off& worst = *std::ranges::max_element(off, {}, &Off::value);
  Finding finding = first;
  finding.ranks.clear();
  finding.value = worst.value;
  finding.bound = worst.bound;
  finding.evidence = one.evidence;
  finding.text = "the reduced gradient is not the mean of the unreduced ones";
  for (const Off& each : off) finding.ranks.push_back(each.reduced->rank);
  if (off.size() == window.ranks.size() && are_alike(off)) {
    const std::int32_t missing = missing_rank(window, one, off.front());
    if (missing >= 0) {
      finding.ranks = {missing};
      finding.text =
          "the reduced gradient lacks the contribution of rank " + std::to_string(missing);
    }
  }
  found.add(std::move(finding));
}

}  // namespace

void check_reduce(const Window& window, Findings& found) {
  if (window.ranks.size() < 2) return;
  const std::vector<Reduction> all = reductions(window);
  if (all.empty()) return;
  const double error = 4.0 * factor_error(all);
  std::vector<double> factors;
  for (const std::int32_t rank : window.ranks) factors.push_back(factor_of(window, all, rank));
  for (const Reduction& one : all) {
    std::vector<Off> off;
    std::optional<Finding> first;
    for (std::size_t r = 0; r < window.ranks.size(); ++r) {
      const Observation* reduced =
          window.now.find(one.tensor, Quantity::grad_reduced, window.ranks[r]);
      if (reduced == nullptr || !reduced->is_finite || !reduced->is_replicated) continue;
      if (may_be_clipped_alone(*reduced)) continue;
      found.checked(Check::reduce, one.evidence);
      const double factor = factors[r];
      const double bound =
          bound_of(*reduced, one, factor) + (factor == 1.0 ? 0.0 : error * one.mean.norm());
      const double value = residual(*reduced, one, factor);
      auto finding = window.result(Check::reduce, Stage::grad_reduced, *reduced, value <= bound);
      if (!finding) continue;
      off.push_back({reduced, value, bound, factor});
      if (!first || finding->certain) first = finding;
    }
    if (first) report(window, one, off, *first, found);
  }
}

}  // namespace trainmon::detect
