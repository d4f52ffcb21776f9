// What is measured: the mergeable state of one tensor, the table of statistics, and derive().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

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

// Levels of the CPU kernels, bit-identical states all. On 64-bit Arm baseline is named "neon".
enum class CpuLevel : std::uint8_t { baseline, avx2, avx512 };
std::string_view cpu_level_name(CpuLevel level);
std::optional<CpuLevel> cpu_level_from_name(std::string_view name);
CpuLevel detected_cpu_level();
// The level in use: the detected one, or what TRAINMON_CPU_LEVEL or set_cpu_level() lowered it to.
// (Another value of the variable counts as unset; `trainmon doctor` says so.)
CpuLevel cpu_level();
// For tests. Throws std::invalid_argument when this machine lacks the level.
void set_cpu_level(CpuLevel level);

// How far two tensors point the same way: (mean of sign(a) sign(b) + 1) / 2 over their elements.
// 1 for equal signs, 0 for opposite ones; an element that is zero or NaN in either counts one half;
// 1 for empty tensors. CPU tensors of the same sizes, any layout and dtype; throws
// std::invalid_argument otherwise.
double sign_agreement(const TensorView& a, const TensorView& b);

// Equal bins from low to high, the last one closed, and what lies outside.
struct Histogram {
  double low = 0.0;
  double high = 0.0;
  std::vector<std::int64_t> bins;
  std::int64_t below = 0;
  std::int64_t above = 0;
  std::int64_t nans = 0;
};

// As the bytes of a payload (docs/formats.md): low, high (float64), below, above, nans and the bins
// (uint64), little-endian.
std::vector<std::byte> histogram_bytes(const Histogram& histogram);
// The other way; nullopt where the bytes are none.
std::optional<Histogram> read_histogram(std::span<const std::byte> bytes);

// Adam's numbers for one step: taken (its `step` state, at least 1) and the constants of its group.
struct AdamStep {
  double step = 1.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};
// Of every element, with m^ = exp_avg / (1 - beta1^step) and v^ = exp_avg_sq / (1 - beta2^step):
// `update` = m^ / (sqrt(v^) + eps), `ratio` = m^ / sqrt(v^), each in 30 bins on [-1, 1]. (Kingma
// and Ba 2015, algorithm 1.) CPU tensors of the same sizes; throws std::invalid_argument otherwise.
struct AdamHistograms {
  Histogram update;
  Histogram ratio;
};
AdamHistograms adam_histograms(const TensorView& exp_avg, const TensorView& exp_avg_sq,
                               const AdamStep& at);

// Measures one CPU tensor in one pass. Any layout; non-contiguous, expanded, 0-dim and empty are
// fine; reads each stored element once and allocates nothing proportional to the tensor.
// `threads` only changes speed: results are bit-identical for any number.
// Throws std::invalid_argument when tensor.device is not cpu.
RowState measure(const TensorView& tensor, double eps = kDefaultEps, int threads = 1);
// The same for many tensors; out.size() must equal tensors.size().
void measure(std::span<const TensorView> tensors, std::span<RowState> out, double eps = kDefaultEps,
             int threads = 1);

}  // namespace trainmon
