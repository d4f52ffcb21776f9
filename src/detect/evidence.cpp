// Rows become observations once; the checks never see a row.
#include "detect/evidence.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "model/kinds.h"
#include "model/rounding.h"
#include "model/state_fields.h"

namespace trainmon::detect {
namespace {

static_assert(kCheckedKinds.size() == kQuantities &&
              kCheckedKinds[static_cast<std::size_t>(Quantity::exp_avg_sq)] == "exp_avg_sq" &&
              kCheckedKinds[static_cast<std::size_t>(Quantity::weight_after)] == "param_updated" &&
              kCheckedKinds[static_cast<std::size_t>(Quantity::buffer)] == kind::kBuffer);

std::uint64_t digest_of(const RowState& state) {
  std::uint64_t digest = 0;
  each_state_field([&](auto field) {
    using Type = typename decltype(field)::Type;
    const Type value = state.*decltype(field)::member;
    std::uint64_t bits = 0;
    if constexpr (std::is_integral_v<Type>) {
      bits = static_cast<std::uint64_t>(value);
    } else {
      bits = std::bit_cast<std::uint64_t>(static_cast<double>(value));
    }
    digest = mixed(digest + 0x9E3779B97F4A7C15u + bits);
  });
  return digest;
}

auto place(const Observation& one) {
  return std::tuple(one.tensor, one.quantity, one.rank);
}

}  // namespace

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

int quantity_of(std::string_view kind) {
  const auto known = std::ranges::find(kCheckedKinds, kind);
  return known == kCheckedKinds.end() ? -1 : static_cast<int>(known - kCheckedKinds.begin());
}

std::string_view quantity_name(Quantity quantity) {
  return kCheckedKinds[static_cast<std::size_t>(quantity)];
}

std::string_view evidence_name(Evidence evidence) {
  constexpr std::array<std::string_view, kEvidences> kNames = {"statistics", "fingerprints",
                                                               "sketches"};
  return kNames[static_cast<std::size_t>(evidence)];
}

Linear& Linear::add(double factor, const Linear& other) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += factor * other.values[i];
  size += std::abs(factor) * other.size;
  stored += std::abs(factor) * other.stored;
  return *this;
}

double Linear::norm() const {
  return std::sqrt(dot(*this));
}

double Linear::dot(const Linear& other) const {
  return std::inner_product(values.begin(), values.end(), other.values.begin(), 0.0);
}

double Observation::norm() const {
  return std::sqrt(sum_sq);
}

bool Observation::is_constant() const {
  return std::abs(sum) >= absmax * count * (1.0 - 1e-6);
}

double Observation::l1_bound() const {
  return std::min(std::sqrt(count) * norm(), count * absmax);
}

double Observation::summing() const {
  return dtype == DType::float64 ? count * unit_roundoff(dtype) : 0.0;
}

Linear Observation::linear(Evidence evidence) const {
  Linear one;
  if (evidence != Evidence::sketches) {
    one.values[0] = sum;
    one.size = l1_bound();
    one.stored = summing() * one.size;
    return one;
  }
  std::ranges::copy(sketch, one.values.begin());
  one.size = kStretch * norm();
  one.stored = unit_roundoff(DType::float32) * one.norm() + added;
  return one;
}

bool are_equal(const Observation& a, const Observation& b) {
  return a.fingerprint && b.fingerprint ? a.fingerprint == b.fingerprint : a.digest == b.digest;
}

bool are_alike(const Observation& a, const Observation& b) {
  // Sums of blocks are added in pairs, so rounding grows with the logarithm of their number.
  constexpr double kOrders = 64.0;
  const double unit = kOrders * unit_roundoff(DType::float64);
  return a.count == b.count && a.absmax == b.absmax &&
         std::abs(a.sum - b.sum) <= unit * a.l1_bound() &&
         std::abs(a.sum_sq - b.sum_sq) <= unit * a.sum_sq;
}

bool may_be_reordered(const Observation& a, const Observation& b) {
  return !(a.fingerprint && b.fingerprint) && are_alike(a, b);
}

bool are_comparable(const Observation& a, const Observation& b) {
  return (a.fingerprint && b.fingerprint) || a.by_operations == b.by_operations;
}

bool are_replicas(const std::vector<const Observation*>& ranks) {
  return ranks.size() > 1 && std::ranges::all_of(ranks, [&](const Observation* one) {
           return one->is_replicated && are_comparable(*one, *ranks.front());
         });
}

bool are_all_equal(const std::vector<const Observation*>& ranks) {
  return std::ranges::all_of(
      ranks, [&](const Observation* one) { return are_equal(*one, *ranks.front()); });
}

Evidence evidence_of_bits(const std::vector<const Observation*>& all) {
  const auto has = [](const Observation* one) { return one->fingerprint.has_value(); };
  return std::ranges::all_of(all, has) ? Evidence::fingerprints : Evidence::statistics;
}

Evidence evidence_of_sums(const std::vector<const Observation*>& all) {
  const auto has = [](const Observation* one) { return !one->sketch.empty(); };
  return std::ranges::all_of(all, has) ? Evidence::sketches : Evidence::statistics;
}

Observation observe(const RowState& state, std::uint32_t flags, double loss_scale,
                    const RowCheck* check) {
  const bool is_scaled = (flags & flag::kStillScaled) != 0;
  const double scale = is_scaled ? loss_scale : 1.0;
  Observation one;
  one.is_finite = !state.non_finite() && !std::isnan(scale);
  one.forward_changes = (flags & flag::kForwardChanges) != 0;
  one.is_before_step = (flags & flag::kBeforeStep) != 0;
  one.by_operations = (flags & flag::kByOperations) != 0;
  one.digest = digest_of(state);
  one.count = static_cast<double>(state.count);
  one.sum = state.sum / scale;
  one.sum_sq = std::ldexp(state.sum_sq, 2 * state.exponent) / (scale * scale);
  one.absmax = state.absmax / scale;
  one.min = state.min / scale;
  one.max = state.max / scale;
  one.zeros = static_cast<double>(state.zeros);
  if (check == nullptr) return one;
  one.fingerprint = check->fingerprint;
  if (!check->has_sketch) return one;
  for (const float sum : check->sketch) one.sketch.push_back(static_cast<float>(sum / scale));
  // Sums beyond float32, of a tensor of float64.
  const auto is_finite = [](float sum) { return std::isfinite(sum); };
  if (!std::ranges::all_of(one.sketch, is_finite)) one.sketch.clear();
  return one;
}

void StepEvidence::sort() {
  const auto order = [](const Observation& one) {
    return std::tuple_cat(place(one), std::tuple(one.attempt, one.accum, one.seq));
  };
  std::ranges::sort(all_, [&](const auto& a, const auto& b) { return order(a) < order(b); });
  std::size_t kept = 0;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const bool is_last = i + 1 == all_.size() || place(all_[i]) != place(all_[i + 1]);
    if (is_last) {
      if (kept != i) all_[kept] = std::move(all_[i]);
      ++kept;
    } else if (all_[i].quantity == Quantity::grad_unreduced) {
      earlier_.push_back(std::move(all_[i]));
    }
  }
  all_.resize(kept);
  tensors_.clear();
  for (const Observation& one : all_) {
    if (tensors_.empty() || tensors_.back() != one.tensor) tensors_.push_back(one.tensor);
  }
  const auto is_of_last = [&](const Observation& one) {
    return find(one.tensor, one.quantity, one.rank)->attempt == one.attempt;
  };
  std::ranges::remove_copy_if(earlier_, std::back_inserter(given_up_), is_of_last);
  std::erase_if(earlier_, [&](const Observation& one) {
    const Observation* const reduced = find(one.tensor, Quantity::grad_reduced, one.rank);
    const bool is_replica = reduced != nullptr && reduced->is_replicated;
    return is_replica || !is_of_last(one);
  });
}

const Observation* StepEvidence::find(std::uint32_t tensor, Quantity quantity,
                                      std::int32_t rank) const {
  const std::tuple wanted(tensor, quantity, rank);
  const auto found = std::ranges::lower_bound(all_, wanted, {}, place);
  return found == all_.end() || place(*found) != wanted ? nullptr : &*found;
}

std::vector<const Observation*> StepEvidence::of(std::uint32_t tensor, Quantity quantity) const {
  const std::pair wanted(tensor, quantity);
  const auto key = [](const Observation& one) { return std::pair(one.tensor, one.quantity); };
  std::vector<const Observation*> found;
  for (const Observation& one : std::ranges::equal_range(all_, wanted, {}, key)) {
    found.push_back(&one);
  }
  return found;
}

namespace {

std::span<const Observation> of_tensor(const std::vector<Observation>& all, std::uint32_t tensor) {
  const auto found = std::ranges::equal_range(all, tensor, {}, &Observation::tensor);
  return {found.begin(), found.end()};
}

}  // namespace

std::span<const Observation> StepEvidence::earlier(std::uint32_t tensor) const {
  return of_tensor(earlier_, tensor);
}

std::span<const Observation> StepEvidence::given_up(std::uint32_t tensor) const {
  return of_tensor(given_up_, tensor);
}

}  // namespace trainmon::detect
