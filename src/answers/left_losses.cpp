#include "answers/left_losses.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
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

LeftLines::Left left_of(const Shift& shift) {
  LeftLines::Left left;
  left.row = shift.row;
  left.apart = shift.apart;
  left.means = static_cast<int>(shift.after);
  left.begins = shift.begins;
  return left;
}

namespace {

using Losses = std::vector<const ReadScalar*>;  // of one name and rank, finite, ascending

std::pair<std::int32_t, std::int64_t> step_of(const ReadScalar* one) {
  return {one->restart, one->step};
}

// One below 0 has no size.
std::optional<LeftLines::Left> left_of(const Series& series, const Losses& values) {
  const auto is_below = [](const ReadScalar* one) { return one->value < 0.0; };
  if (std::ranges::any_of(values, is_below)) return std::nullopt;
  LeftLines line({series});
  ShiftSearch lasting(kLasting), brief(kShort);
  for (const ReadScalar* one : values) {
    line.add({place_of(*one), 0, one->value, 1});
    lasting.add(place_of(*one), one->value);
    brief.add(place_of(*one), one->value);
  }
  line.end_rank([](std::uint32_t, const Unusual<RowPlace>&) {});
  std::optional<LeftLines::Left> first;
  if (!line.left().empty()) first = line.left().begin()->second;
  for (const ShiftSearch* one : {&lasting, &brief}) {
    if (!one->found()) continue;
    const bool is_first = !first || one->found()->row.row.step < first->row.row.step;
    if (is_first) first = left_of(*one->found());
  }
  return first;
}

// Of another rank than the one of `found`: whether the loss did the same there by half or more, and
// by more than its noise.
std::optional<LeftLines::Left> left_with(const Losses& values, const LeftLines::Left& found,
                                         double by) {
  constexpr std::size_t kAfter = kShort.after, kBefore = ShiftSearch::kBefore;
  constexpr double kErrors = 3.0;
  const std::pair step(found.row.row.restart, found.row.row.step);
  const auto at = std::ranges::lower_bound(values, step, {}, step_of);
  if (at == values.end() || step_of(*at) != step) return std::nullopt;
  const auto place = static_cast<std::size_t>(at - values.begin());
  if (place < kBefore || place + kAfter > values.size()) return std::nullopt;
  History history;
  double before = 0.0, after = 0.0, square = 0.0;
  for (std::size_t i = place - kBefore; i < place + kAfter; ++i) {
    if (!(values[i]->value > 0.0)) return std::nullopt;
    const double log = std::log(values[i]->value);
    if (i < place) history.add(log / std::log(10.0));
    (i < place ? before : after) += log / static_cast<double>(i < place ? kBefore : kAfter);
    square += i < place ? log * log / static_cast<double>(kBefore) : 0.0;
  }
  const double deviation = std::sqrt(std::max(square - before * before, 0.0));
  const double apart = after - before;
  if (apart * by < 0.5 * by * by || std::abs(apart) < kErrors * deviation * 0.5)
    return std::nullopt;
  LeftLines::Left left = found;
  left.row.row = place_of(**at);
  left.row.value = (*at)->value;
  left.row.usual = history.usual();
  left.row.score = history.score(std::log10(left.row.value));
  left.apart = std::exp(std::abs(apart));
  left.means = static_cast<int>(kAfter);
  return left;
}

}  // namespace

std::vector<LeftLossLines> left_losses(const std::vector<ReadScalar>& scalars) {
  std::map<std::string, std::map<int, Losses>> losses;  // by name, rank
  for (const ReadScalar& one : scalars) {
    if (is_loss(one.name) && std::isfinite(one.value)) losses[one.name][one.rank].push_back(&one);
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
      std::ranges::stable_sort(values, {}, step_of);
      const std::optional<LeftLines::Left> left = left_of(series, values);
      if (!left) continue;
      const RowPlace& row = left->row.row;
      steps.try_emplace({row.restart, row.step}, *left);
      known.insert({rank, row.restart, row.step});
      found.lines.push_back(*left);
    }
    for (const auto& [step, one] : steps) {
      const double by = std::log(one.row.value / one.row.usual);
      const double mean = one.means > 0 ? std::copysign(std::log(one.apart), by) : by;
      for (const auto& [rank, values] : ranks) {
        if (known.contains({rank, step.first, step.second})) continue;
        if (const auto left = left_with(values, one, mean)) found.lines.push_back(*left);
      }
    }
    if (!found.lines.empty()) all.push_back(std::move(found));
  }
  return all;
}

}  // namespace trainmon
