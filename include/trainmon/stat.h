// What is measured: the mergeable state of one tensor, the table of statistics, and derive().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>

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
//
// A state may be an estimate, from some of the elements (flag::kSampled of its row). Then min, max
// and absmax are NaN. Counts other than `count` are those of the elements that were read, and the
// rest is estimated for all elements.
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
  constexpr std::int64_t finite() const {
    return static_cast<std::int64_t>(
        static_cast<std::uint64_t>(count) - static_cast<std::uint64_t>(nans) -
        static_cast<std::uint64_t>(pos_infs) - static_cast<std::uint64_t>(neg_infs));
  }
  bool non_finite() const { return (nans | pos_infs | neg_infs) != 0; }
  bool is_estimate() const { return min != min; }
  void mark_estimate() { min = max = absmax = std::numeric_limits<double>::quiet_NaN(); }
};

// How the fields of two states become that of both. Where one state has no finite element, its
// fields other than counts take no part.
enum class MergeLaw : std::uint8_t {
  add,       // their sum
  moment,    // their sum, both moved to the common mean
  mean,      // the common mean
  least,     // the smaller one
  greatest,  // the greater one
  exponent,  // the exponent that both are brought to
};

template <typename T>
struct StateField {
  std::string_view name;
  T RowState::*member;
  MergeLaw law;
  int degree;           // elements times c give the field times c^degree; those of degree 2 are
                        // stored divided by 4^exponent
  std::uint8_t column;  // its number in files (docs/formats.md), given once and for ever
};

// Every field of RowState. What copies, compares, scales, merges, writes or reads whole states
// follows this table (src/model/state_fields.h). A file without a field gives the field the value
// of RowState{}. The order is that of columns in a log, where mean and absmax follow what implies
// them, and of the vectors in Python.
inline constexpr std::tuple kStateFields = {
    StateField{"count", &RowState::count, MergeLaw::add, 0, 7},
    StateField{"nans", &RowState::nans, MergeLaw::add, 0, 8},
    StateField{"pos_infs", &RowState::pos_infs, MergeLaw::add, 0, 9},
    StateField{"neg_infs", &RowState::neg_infs, MergeLaw::add, 0, 10},
    StateField{"zeros", &RowState::zeros, MergeLaw::add, 0, 11},
    StateField{"subnormals", &RowState::subnormals, MergeLaw::add, 0, 12},
    StateField{"sum", &RowState::sum, MergeLaw::add, 1, 13},
    StateField{"min", &RowState::min, MergeLaw::least, 1, 17},
    StateField{"max", &RowState::max, MergeLaw::greatest, 1, 18},
    StateField{"mean", &RowState::mean, MergeLaw::mean, 1, 14},
    StateField{"m2", &RowState::m2, MergeLaw::moment, 2, 15},
    StateField{"sum_sq", &RowState::sum_sq, MergeLaw::add, 2, 16},
    StateField{"absmax", &RowState::absmax, MergeLaw::greatest, 1, 19},
    StateField{"exponent", &RowState::exponent, MergeLaw::exponent, 0, 20},
};

// Adds the elements of `from` to `into`. Counts, min, max and absmax are exact under any split.
// Sums depend on the order of merging only within rounding (Chan, Golub, LeVeque 1979 for m2).
// With an estimate the result is one.
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
  // What derive() reads of the state beside nans, pos_infs and neg_infs, and readers decode for it:
  // bit i is line i of kStateFields.
  std::uint32_t fields;
};
const std::array<StatDefinition, kStatCount>& stat_table();
std::optional<Stat> stat_from_name(std::string_view name);
std::string_view stat_name(Stat stat);

// The statistic people ask for, from the state. Counts are returned as (exact) doubles up to 2^53.
// NaN for what an estimate does not say: extremes, and every number of elements but `count`.
double derive(Stat stat, const RowState& state);
// Whether derive() gives what the statistic is. An estimate tells of extremes only where an element
// that was read is not finite, and of how many elements are so nothing.
bool is_told(Stat stat, const RowState& state);

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
