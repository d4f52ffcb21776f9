// Rows become observations once; the checks never see a row.
#include "detect/evidence.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <tuple>

#include "model/state_fields.h"

namespace trainmon::detect {
namespace {

constexpr std::array<std::string_view, kQuantities> kKinds = {
    "param_origin", "grad_unreduced",  "grad_reduced", "exp_avg",
    "exp_avg_sq",   "momentum_buffer", "param_updated"};

std::uint64_t mixed(std::uint64_t x) {  // the finalizer of SplitMix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

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

int quantity_of(std::string_view kind) {
  const auto known = std::ranges::find(kKinds, kind);
  return known == kKinds.end() ? -1 : static_cast<int>(known - kKinds.begin());
}

std::string_view quantity_name(Quantity quantity) {
  return kKinds[static_cast<std::size_t>(quantity)];
}

double Observation::norm() const {
  return std::sqrt(sum_sq);
}

double Observation::l1_bound() const {
  return std::min(std::sqrt(count) * norm(), count * absmax);
}

Observation observe(const RowState& state, std::uint32_t flags, double loss_scale) {
  const bool is_scaled = (flags & flag::kStillScaled) != 0;
  const double scale = is_scaled ? loss_scale : 1.0;
  Observation one;
  one.is_finite = !state.non_finite() && !std::isnan(scale);
  one.digest = digest_of(state);
  one.count = static_cast<double>(state.count);
  one.sum = state.sum / scale;
  one.sum_sq = std::ldexp(state.sum_sq, 2 * state.exponent) / (scale * scale);
  one.absmax = state.absmax / scale;
  return one;
}

void StepEvidence::sort() {
  const auto order = [](const Observation& one) {
    return std::tuple_cat(place(one), std::tuple(one.attempt, one.accum, one.seq));
  };
  std::ranges::sort(all_, [&](const auto& a, const auto& b) { return order(a) < order(b); });
  // The last of each place: the first of each, seen from the end.
  std::ranges::reverse(all_);
  const auto same_place = [](const auto& a, const auto& b) { return place(a) == place(b); };
  all_.erase(std::unique(all_.begin(), all_.end(), same_place), all_.end());
  std::ranges::reverse(all_);
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

}  // namespace trainmon::detect
