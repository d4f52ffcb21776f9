// The table of statistics, what each derives from a state, and the merging of states.
#include "trainmon/stat.h"

#include <algorithm>
#include <cmath>

#include "model/merge.h"
#include "trainmon/record.h"

namespace trainmon {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// A name that is none of the state does not compile.
template <typename... Names>
consteval std::uint32_t reads(Names... names) {
  std::uint32_t fields = 0;
  for (const std::string_view name : {std::string_view(names)...}) {
    std::uint32_t bit = 1, found = 0;
    each_state_field([&](auto field) {
      if (field.name == name) found = bit;
      bit <<= 1;
    });
    if (found == 0) throw "no field of the state has this name";
    fields |= found;
  }
  return fields;
}

constexpr std::array<StatDefinition, kStatCount> kStats = {{
    {Stat::norm, "norm", "sqrt(sum(x^2))", "float64", "NaN", "+Inf", "0",
     reads("sum_sq", "exponent")},
    {Stat::min, "min", "smallest x", "float64", "NaN", "-Inf if present, else as if finite", "NaN",
     reads("min", "count")},
    {Stat::max, "max", "largest x", "float64", "NaN", "+Inf if present, else as if finite", "NaN",
     reads("max", "count")},
    {Stat::mean, "mean", "sum(x) / count", "float64", "NaN", "that Inf; NaN if both signs", "NaN",
     reads("sum", "mean", "count")},
    {Stat::zeros, "zeros", "number of |x| < eps, / count", "float64", "NaN is not below eps",
     "Inf is not below eps", "NaN", reads("zeros", "count")},
    {Stat::nans, "nans", "number of NaN", "int64", "their number", "0", "0", 0},
    {Stat::infs, "infs", "number of +Inf and -Inf", "int64", "their number", "their number", "0",
     0},
    {Stat::subnormals, "subnormals", "number of 0 < |x| < smallest normal number of the dtype",
     "int64", "of the others", "of the others", "0", reads("subnormals")},
    {Stat::absmax, "absmax", "largest |x|", "float64", "NaN", "+Inf", "NaN",
     reads("min", "max", "absmax", "count")},
    {Stat::std, "std", "sqrt(sum((x - mean)^2) / count)", "float64", "NaN", "NaN", "NaN",
     reads("m2", "count", "exponent")},
    {Stat::count, "count", "number of elements", "int64", "NaN counted", "Inf counted", "0",
     reads("count")},
}};

constexpr bool stats_in_enum_order() {
  for (std::size_t i = 0; i < kStats.size(); ++i) {
    if (static_cast<std::size_t>(kStats[i].stat) != i) return false;
  }
  return true;
}
static_assert(stats_in_enum_order());

double as_double(std::int64_t count) {
  return static_cast<double>(count);
}

}  // namespace

const std::array<StatDefinition, kStatCount>& stat_table() {
  return kStats;
}

std::optional<Stat> stat_from_name(std::string_view name) {
  const auto found = std::ranges::find(kStats, name, &StatDefinition::name);
  if (found == kStats.end()) return std::nullopt;
  return found->stat;
}

std::string_view stat_name(Stat stat) {
  return kStats[static_cast<std::size_t>(stat)].name;
}

void merge(RowState& into, const RowState& from) {
  const bool is_estimate = into.is_estimate() || from.is_estimate();
  merge_states(into, from);
  if (is_estimate) into.mark_estimate();
}

// Nearly every exponent is 0.
static double scaled(double value, std::int32_t exponent) {
  return exponent == 0 ? value : std::ldexp(value, exponent);
}

double mean_error(const RowState& state, const RowSample& sample) {
  if (!is_finite(derive(Stat::mean, state))) return kNan;
  return sample.sum_error / as_double(state.count);
}

// The square root has the slope 1 / (2 norm).
double norm_error(const RowState& state, const RowSample& sample) {
  if (state.non_finite()) return kNan;
  if (sample.sum_sq_error == 0.0) return 0.0;
  return scaled(sample.sum_sq_error / (2.0 * std::sqrt(state.sum_sq)), state.exponent);
}

bool is_told(Stat stat, const RowState& state) {
  if (!state.is_estimate()) return true;
  switch (stat) {
    case Stat::nans:
    case Stat::infs:
    case Stat::subnormals:
    case Stat::zeros:
      return false;
    case Stat::min:
      return state.nans > 0 || state.neg_infs > 0;
    case Stat::max:
      return state.nans > 0 || state.pos_infs > 0;
    case Stat::absmax:
      return state.non_finite();
    default:
      return true;
  }
}

double derive(Stat stat, const RowState& state) {
  if (!is_told(stat, state)) return kNan;
  const bool empty = state.count == 0;
  switch (stat) {
    case Stat::count:
      return as_double(state.count);
    case Stat::nans:
      return as_double(state.nans);
    case Stat::infs:
      return as_double(wrapping_sum(state.pos_infs, state.neg_infs));
    case Stat::subnormals:
      return as_double(state.subnormals);
    case Stat::zeros:
      return empty ? kNan : as_double(state.zeros) / as_double(state.count);
    case Stat::norm:
      if (state.nans > 0) return kNan;
      if (state.non_finite()) return kInf;
      return scaled(std::sqrt(state.sum_sq), state.exponent);
    case Stat::absmax:
      if (state.nans > 0 || empty) return kNan;
      return state.non_finite() ? kInf : state.absmax;
    case Stat::min:
      if (state.nans > 0 || empty) return kNan;
      return state.neg_infs > 0 ? -kInf : state.min;
    case Stat::max:
      if (state.nans > 0 || empty) return kNan;
      return state.pos_infs > 0 ? kInf : state.max;
    case Stat::mean:
      if (state.nans > 0 || empty || (state.pos_infs > 0 && state.neg_infs > 0)) return kNan;
      if (state.pos_infs > 0) return kInf;
      return state.neg_infs > 0 ? -kInf : state.mean;
    case Stat::std:
      if (state.non_finite() || empty) return kNan;
      return scaled(std::sqrt(state.m2 / as_double(state.count)), state.exponent);
  }
  return kNan;
}

}  // namespace trainmon
