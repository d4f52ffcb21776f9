#include "answers/left_losses.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "model/first_bad.h"
#include "model/own_scalars.h"

namespace trainmon {
namespace {

RowPlace place_of(const ReadScalar& one) {
  RowPlace row;
  row.restart = one.restart;
  row.rank = one.rank;
  row.step = one.step;
  row.seq = one.seq;
  return row;
}

}  // namespace

LeftLines::Left left_of(const Shift& shift, double unit) {
  const auto value = [&](double number) { return unit > 0.0 ? number * unit : std::exp(number); };
  LeftLines::Left left;
  left.row = shift.row;
  left.row.value = value(shift.row.value);
  left.row.usual = value(shift.row.usual);
  left.apart = unit > 0.0 ? shift.apart : std::exp(shift.apart);
  left.means = static_cast<int>(shift.after);
  left.begins = shift.begins;
  left.unit = unit;
  return left;
}

namespace {

// Of one name and rank. What is below 0 has no logarithm: then its number is the value in units of
// the usual size.
struct Losses {
  std::vector<const ReadScalar*> values;  // finite, ascending
  double unit = 0.0;                      // 0: logarithms

  double number(const ReadScalar* one) const {
    return unit > 0.0 ? one->value / unit : std::log(one->value);
  }
  void set_unit() {
    const auto is_below = [](const ReadScalar* one) { return one->value < 0.0; };
    if (std::ranges::none_of(values, is_below)) return;
    std::vector<double> sizes;
    for (const ReadScalar* one : values) {
      if (sizes.size() < ShiftSearch::kYoung) sizes.push_back(std::abs(one->value));
    }
    const auto middle = sizes.begin() + std::ssize(sizes) / 2;
    std::ranges::nth_element(sizes, middle);
    unit = std::max(*middle, std::numeric_limits<double>::min());
  }
};

std::pair<std::int32_t, std::int64_t> step_of(const ReadScalar* one) {
  return {one->restart, one->step};
}

std::optional<LeftLines::Left> left_of(const Series& series, const Losses& losses) {
  LeftLines line({series});
  ShiftSearch lasting(losses.unit > 0.0 ? kOfBothSigns : kLasting), brief(kShort);
  for (const ReadScalar* one : losses.values) {
    if (losses.unit == 0.0) line.add({place_of(*one), 0, one->value, 1});
    lasting.add(place_of(*one), losses.number(one));
    if (losses.unit == 0.0) brief.add(place_of(*one), losses.number(one));
  }
  line.end_rank([](std::uint32_t, const Unusual<RowPlace>&) {});
  std::optional<LeftLines::Left> first;
  if (!line.left().empty()) first = line.left().begin()->second;
  for (const ShiftSearch* one : {&lasting, &brief}) {
    if (!one->found()) continue;
    const bool is_first = !first || one->found()->row.row.step < first->row.row.step;
    if (is_first) first = left_of(*one->found(), losses.unit);
  }
  return first;
}

// Of another rank than the one of `found`: whether the loss did the same there by half or more, and
// by more than its noise. `change` is that of the numbers there.
std::optional<LeftLines::Left> left_with(const Losses& losses, const LeftLines::Left& found,
                                         double change) {
  constexpr std::size_t kAfter = kShort.after, kBefore = ShiftSearch::kBefore;
  constexpr double kDeviations = 1.5;
  const std::vector<const ReadScalar*>& values = losses.values;
  const std::pair step(found.row.row.restart, found.row.row.step);
  const auto at = std::ranges::lower_bound(values, step, {}, step_of);
  if (at == values.end() || step_of(*at) != step) return std::nullopt;
  const auto place = static_cast<std::size_t>(at - values.begin());
  if (place < kBefore || place + kAfter > values.size()) return std::nullopt;
  const auto number = [&](const ReadScalar* one) { return losses.number(one); };
  const std::span all(values);
  const Moments before = moments_of(all.subspan(place - kBefore, kBefore), number);
  const Moments after = moments_of(all.subspan(place, kAfter), number);
  const double apart = after.mean - before.mean;
  const bool is_alike = apart * change >= 0.5 * change * change;
  if (!is_alike || std::abs(apart) < kDeviations * std::sqrt(before.variance)) return std::nullopt;
  Shift shift;
  shift.row =
      unusual_of(all.subspan(place - kBefore, kBefore), number, place_of(**at), number(*at));
  shift.apart = std::abs(apart);
  shift.after = kAfter;
  shift.begins = found.begins;
  return left_of(shift, losses.unit);
}

// By how much it left, in the numbers of its losses.
double change_of(const LeftLines::Left& one) {
  if (one.unit > 0.0) return std::copysign(one.apart, one.row.value - one.row.usual);
  const double change = std::log(one.row.value / one.row.usual);
  return one.means > 0 ? std::copysign(std::log(one.apart), change) : change;
}

}  // namespace

std::vector<LeftLossLines> left_losses(const std::vector<ReadScalar>& scalars) {
  std::map<std::string, std::map<int, Losses>> losses;  // by name, rank
  for (const ReadScalar& one : scalars) {
    if (is_loss(one.name) && std::isfinite(one.value)) {
      losses[one.name][one.rank].values.push_back(&one);
    }
  }
  std::vector<LeftLossLines> all;
  for (auto& [name, ranks] : losses) {
    Series series;
    series.kind = kLogged;
    series.name = name;
    LeftLossLines found = {name, {}};
    std::map<std::pair<std::int32_t, std::int64_t>, LeftLines::Left> steps;  // the first of each
    std::set<std::tuple<int, std::int32_t, std::int64_t>> known;             // rank, restart, step
    for (auto& [rank, values] : ranks) {
      std::ranges::stable_sort(values.values, {}, step_of);
      values.set_unit();
      const std::optional<LeftLines::Left> left = left_of(series, values);
      if (!left) continue;
      const RowPlace& row = left->row.row;
      steps.try_emplace({row.restart, row.step}, *left);
      known.insert({rank, row.restart, row.step});
      found.lines.push_back(*left);
    }
    for (const auto& [step, one] : steps) {
      const double change = change_of(one);
      for (const auto& [rank, values] : ranks) {
        if (known.contains({rank, step.first, step.second})) continue;
        if (const auto left = left_with(values, one, change)) found.lines.push_back(*left);
      }
    }
    if (!found.lines.empty()) all.push_back(std::move(found));
  }
  return all;
}

}  // namespace trainmon
