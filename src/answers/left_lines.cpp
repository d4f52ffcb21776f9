#include "answers/left_lines.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "model/kinds.h"

namespace trainmon {
namespace {

// A line is young for so many rows: many change fast then, and must go further.
constexpr std::size_t kYoung = 48;
// By which factor a line stays away by itself.
constexpr double kApart = 2.5, kApartOfYoung = 4.0, kLossApart = 1.5;
// Any line but a young one does so by a smaller factor if that is so many times the range before.
constexpr double kSmall = 1.05;
constexpr float kWider = 1.25F;
// Together with others of its kind, by the small factor: how many, and which share of all.
constexpr std::size_t kMany = 6, kShare = 4;
// What changes over several steps counts at the step in which most do.
constexpr std::int64_t kNear = 2;
constexpr float kToZero = 9.0F;  // decades, for what becomes 0

}  // namespace

void LeftLines::Recent::add(const ClosedRow<RowPlace>& row) {
  std::move(logs.begin() + 1, logs.end(), logs.begin());
  std::move(places.begin() + 1, places.end(), places.begin());
  logs.back() = static_cast<float>(row.log);
  places.back() = {row.row.step, row.row.restart, static_cast<float>(row.score),
                   static_cast<float>(row.before.middle())};
  count = std::min(count + 1, kRows);
}

LeftLines::Recent::Gap LeftLines::Recent::gap() const {
  if (count < kRows) return {};
  // Most rows are told by a few.
  const bool is_above = logs[History::kMost] > logs[History::kMost - 1];
  for (const std::size_t before : {0, 5, 10, 15}) {
    if ((logs.back() > logs[before]) != is_above) return {};
  }
  const auto middle = logs.begin() + History::kMost;
  const auto [lowest, highest] = std::minmax_element(logs.begin(), middle);
  const auto [lowest_after, highest_after] = std::minmax_element(middle, logs.end());
  if (std::isinf(*highest)) return {};  // all were 0
  const float above = *lowest_after - *highest;
  const float below = std::isinf(*lowest) ? 0.0F : std::min(*lowest - *highest_after, kToZero);
  return {std::max({above, below, 0.0F}), *highest - *lowest};
}

LeftLines::LeftLines(const std::vector<Series>& series)
    : histories_(series), lines_(histories_.tensors().count), of_(lines_.size()) {
  std::map<std::string_view, std::uint32_t> kinds;
  for (std::size_t i = 0; i < series.size(); ++i) {
    const std::string_view kind = series[i].kind;
    const auto number = static_cast<std::uint32_t>(kinds.size());
    const auto known = std::ranges::find(kind_table(), kind, &Kind::name);
    Of& of = of_[tensors().of[i]];
    of.kind = kinds.try_emplace(kind, number).first->second;
    of.is_state = known != kind_table().end() && known->is_state;
    of.is_even = kind != kind::kParamOrigin && kind != kind::kUpdate && kind != kind::kParamUpdated;
    of.is_together = kind == kind::kActv || is_gradient(kind);
    of.is_loss = kind == kLogged;
  }
}

void LeftLines::add(const RowPlace& row, std::uint32_t series, double value,
                    std::int64_t elements) {
  const std::uint32_t tensor = tensors().of[series];
  histories_.add(series, row.step, value, row,
                 [&](const ClosedRow<RowPlace>& one) { note(tensor, one); });
  Line& line = lines_[tensor];
  if (line.elements >= 0 && line.elements != elements) {
    line.has_changed = true;
    line.steps = 0;
  } else if (line.step != row.step) {
    ++line.steps;
  }
  line.series = series;
  line.elements = elements;
  line.step = row.step;
  rank_ = row.rank;
}

void LeftLines::forget() {
  std::ranges::fill(lines_, Line{});
  left_.clear();
  together_.clear();
}

// Of a batch with fewer samples a norm is another one.
void LeftLines::note(std::uint32_t tensor, const ClosedRow<RowPlace>& one) {
  Line& line = lines_[tensor];
  if (one.row.fate == Fate::skipped) return;
  ++line.rows;
  if (line.has_changed && line.steps < History::kMost) {
    line.recent.count = 0;
    return;
  }
  if (one.score >= kFarBehind && std::isfinite(one.before.middle()) && !left_.contains(tensor)) {
    left_.try_emplace(tensor, one.unusual(), line.series);
  }
  if (of_[tensor].is_state) return;
  line.recent.add(one);
  note_gap(tensor);
}

void LeftLines::note_gap(std::uint32_t tensor) {
  static const auto kSmallGap = static_cast<float>(std::log10(kSmall));
  const Line& line = lines_[tensor];
  const auto [gap, width] = line.recent.gap();
  if (gap < kSmallGap) return;
  const Of& of = of_[tensor];
  const bool is_young = line.rows < kYoung + kStays;
  const double apart = of.is_loss ? kLossApart : is_young ? kApartOfYoung : kApart;
  const bool is_far = gap >= std::log10(apart);
  const bool is_wide = !is_young && of.is_even && gap >= kWider * width;
  const bool is_one = is_far || is_wide;
  if (!is_one && (is_young || !of.is_together)) return;
  const Recent::Place& place = line.recent.places.front();
  Left left;
  left.row.score = place.score;
  left.row.usual = std::pow(10.0, place.usual);
  left.row.value = std::pow(10.0, line.recent.logs[History::kMost]);
  left.row.row.restart = place.restart;
  left.row.row.rank = rank_;
  left.row.row.step = place.step;
  left.series = line.series;
  left.apart = is_far ? apart : kSmall;
  if (!is_young && of.is_together) together_[{place.step, of.kind}].push_back({tensor, gap, left});
  if (!is_one) return;
  Left& known = left_.try_emplace(tensor, left).first->second;
  if (known.row.row.step >= place.step) known = left;
}

std::map<std::int64_t, std::vector<LeftLines::Left>> LeftLines::left_together() const {
  std::map<std::uint32_t, std::size_t> settled;  // by kind
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    if (lines_[i].rows >= kYoung) ++settled[of_[i].kind];
  }
  std::map<std::int64_t, std::vector<Left>> left;
  for (const auto& [place, lines] : together_) {
    const auto [step, kind] = place;
    if (lines.size() < kMany || kShare * lines.size() < settled[kind]) continue;
    bool is_largest = true;
    for (std::int64_t other = step - kNear; other <= step + kNear; ++other) {
      const auto near = together_.find({other, kind});
      if (near == together_.end()) continue;
      const std::size_t many = near->second.size();
      is_largest = is_largest && (other < step ? many < lines.size() : many <= lines.size());
    }
    if (!is_largest) continue;
    // The furthest comes first.
    std::vector<Together> ordered = lines;
    std::ranges::stable_sort(ordered, std::ranges::greater(), &Together::gap);
    for (const Together& one : ordered) left[step].push_back(one.left);
  }
  return left;
}

}  // namespace trainmon
