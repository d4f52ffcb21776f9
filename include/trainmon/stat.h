// What is measured: the mergeable state of one tensor, the table of statistics, and derive().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include "trainmon/tensor.h"

namespace trainmon {

// Mergeable state of one observation. Value fields (sum, mean, m2, sum_sq, min, max, absmax)
// describe the *finite* elements only; NaN and the infinities are counted apart.
//   count       all elements, expanded dimensions counted fully
//   zeros       elements with |x| < eps (eps of the batch)
//   subnormals  non-zero elements below the smallest normal number of the tensor's dtype
//   mean, m2    arithmetic mean and sum of (x - mean)^2 (second central moment times n)
//   sum_sq      sum of x^2
//   exponent    m2 and sum_sq are stored divided by 4^exponent, so that float64 input of any scale
//               neither overflows nor underflows; 0 for every narrower dtype
//   sum         may overflow to an infinity for float64 input only; mean stays right
//   min, max    +inf and -inf when there is no finite element; absmax 0
struct RowState {
  std::int64_t count = 0;
  std::int64_t nans = 0;
  std::int64_t pos_infs = 0;
  std::int64_t neg_infs = 0;
  std::int64_t zeros = 0;
  std::int64_t subnormals = 0;
  double sum = 0.0;
  double mean = 0.0;
  double m2 = 0.0;
  double sum_sq = 0.0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double absmax = 0.0;
  std::int32_t exponent = 0;

  // Unsigned inside, for a damaged file may hold counts that no tensor has.
  std::int64_t finite() const {
    const auto n = [](std::int64_t number) { return static_cast<std::uint64_t>(number); };
    return static_cast<std::int64_t>(n(count) - n(nans) - n(pos_infs) - n(neg_infs));
  }
  bool non_finite() const { return (nans | pos_infs | neg_infs) != 0; }
};

// Adds the elements of `from` to `into`. Counts, min, max and absmax are exact under any split;
// sums depend on the order of merging only within rounding (Chan, Golub, LeVeque 1979 for m2).
void merge(RowState& into, const RowState& from);

enum class Stat : std::uint8_t {
  norm,
  min,
  max,
  mean,
  zeros,
  nans,
  infs,
  subnormals,
  absmax,
  std,
  count,
};
inline constexpr std::size_t kStatCount = 11;

// One line of the table that defines every statistic; docs/statistics.md is generated from it.
struct StatDefinition {
  Stat stat;
  std::string_view name;      // as users write it
  std::string_view formula;   // over the elements x of the tensor
  std::string_view type;      // "float64" or "int64"
  std::string_view with_nan;  // value when at least one element is NaN
  std::string_view with_inf;  // value when no element is NaN and at least one is infinite
  std::string_view empty;     // value of a tensor without elements
};
const std::array<StatDefinition, kStatCount>& stat_table();
std::optional<Stat> stat_from_name(std::string_view name);
std::string_view stat_name(Stat stat);

// The statistic people ask for, from the state. Counts are returned as (exact) doubles up to 2^53.
double derive(Stat stat, const RowState& state);

inline constexpr double kDefaultEps = 1e-8;

// Measures one CPU tensor in one pass. Any layout; non-contiguous, expanded, 0-dim and empty are
// fine; reads each stored element once and allocates nothing proportional to the tensor.
// `threads` only changes speed: results are bit-identical for any number.
// Throws std::invalid_argument when tensor.device is not cpu.
RowState measure(const TensorView& tensor, double eps = kDefaultEps, int threads = 1);
// The same for many tensors; out.size() must equal tensors.size().
void measure(std::span<const TensorView> tensors, std::span<RowState> out, double eps = kDefaultEps,
             int threads = 1);

}  // namespace trainmon
