#include "answers/left_lines.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>

#include "model/kinds.h"

namespace trainmon {
namespace {

// Of the score of a young line. Others: kFarBehind.
constexpr double kYoungFarBehind = 2.0 * kFarBehind;
// By which factor a line stays away.
constexpr double kApart = 2.5, kApartOfYoung = 4.0;
constexpr double kLossApart = 1.5, kYoungLossApart = 2.5;
// Any line but a young one does so by a smaller factor, too, that is as wide as the range before.
constexpr double kSmall = 1.08;
// The first rows of a start are others than those before. Inputs do not drift.
constexpr FirstOfStart kFirstInputs = {LeftLines::kStays, 6.0, 1.01, false};
constexpr FirstOfStart kFirstLosses = {LeftLines::kStays, 6.0, 1.1, true};
// Of activations and their gradients; and where the training learns soon what has changed.
constexpr FirstOfStart kFirstActivations[] = {{LeftLines::kStays, 8.0, 1.2, false},
                                              {4, 8.0, 1.5, false}};
constexpr double kLevel = 0.35;  // of the change: by so much halves of level rows differ
// An activation that was never far behind for so many rows, and then is in so many of kAgain.
constexpr std::size_t kQuiet = 48;
constexpr int kTimes = 4;
constexpr double kBehindAgain = 15.0;
constexpr float kToZero = 9.0F;  // decades, for what becomes 0
// What adds up to 0 in exact arithmetic has a mean of at most this, over its root mean square.
constexpr double kBalanced = 1e-6;

// What may shift of a line of this kind.
std::vector<Measure> shifting_of(const Series& series) {
  const std::string& kind = series.kind;
  if (is_ids(series)) return {Measure::norm, Measure::largest};
  if (kind == kind::kInput) return {Measure::norm, Measure::mean};
  if (kind == kind::kInputEntropy) return {Measure::norm};
  if (kind == kind::kActv) return {Measure::zeros};
  if (kind == kind::kActvGrad) return {Measure::zeros, Measure::balance};
  return {};
}
// What may swing otherwise.
std::vector<Measure> swinging_of(std::string_view kind) {
  if (kind == kind::kInput) return {Measure::norm, Measure::mean};
  if (kind == kind::kInputEntropy) return {Measure::norm};
  return {};
}

}  // namespace

void LeftLines::Recent::add(const ClosedRow<RowPlace>& row) {
  std::move(logs.begin() + 1, logs.end(), logs.begin());
  std::move(places.begin() + 1, places.end(), places.begin());
  logs.back() = static_cast<float>(row.log);
  places.back() = {row.row.step,
                   row.row.seq,
                   row.row.restart,
                   row.row.accum,
                   static_cast<float>(row.score),
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

float LeftLines::Recent::gap_of_means(const FirstOfStart& rule) const {
  if (count < kRows || places[0].restart == places[1].restart) return 0.0F;
  const auto moments = [](std::span<const float> logs) {
    return moments_of(logs, [](float log) { return static_cast<double>(log); });
  };
  constexpr std::size_t kHalf = History::kMost / 2;
  const std::span all(logs);
  const auto [before, variance_before] = moments(all.first(History::kMost));
  const auto [after, variance_after] =
      moments(all.subspan(History::kMost, static_cast<std::size_t>(rule.rows)));
  const double apart = std::abs(after - before);
  const double drift = moments(all.subspan(kHalf, kHalf)).mean - moments(all.first(kHalf)).mean;
  if (rule.was_level && std::abs(drift) > kLevel * apart) return 0.0F;
  const double error = std::sqrt(variance_before / History::kMost + variance_after / rule.rows);
  const bool is_far = apart >= std::log10(rule.factor) && apart >= rule.errors * error;
  return is_far && std::isfinite(apart) ? static_cast<float>(apart) : 0.0F;
}

LeftLines::LeftLines(const std::vector<Series>& series)
    : histories_(series), lines_(histories_.tensors().count), of_(lines_.size()), changes_(series) {
  std::map<std::pair<std::string_view, std::int32_t>, std::size_t> numbers;
  for (std::size_t i = 0; i < series.size(); ++i) {
    const std::string_view kind = series[i].kind;
    const Kind* known = known_kind(kind);
    Of& of = of_[tensors().of[i]];
    of.is_state = known != nullptr && known->is_state;
    of.is_own_state = is_own_state(series[i]);
    of.is_even = kind != kind::kParamOrigin && kind != kind::kUpdate && kind != kind::kParamUpdated;
    of.is_loss = kind == kLogged;
    of.is_input = kind == kind::kInput;
    of.is_activation = kind == kind::kActv || kind == kind::kActvGrad;
    of.may_be_clipped = kind == kind::kGradReduced || kind == kind::kUpdate;
    if (of.shifting == 0) {
      const std::size_t first = shifting_.size();
      for (const Measure measure : shifting_of(series[i])) {
        shifting_.push_back({.series = static_cast<std::uint32_t>(i),
                             .measure = measure,
                             .is_forward = kind == kind::kActv});
      }
      if (shifting_.size() > first) of.shifting = static_cast<std::uint32_t>(first) + 1;
    }
    if (of.swinging == 0) {
      const std::size_t first = swinging_.size();
      for (const Measure measure : swinging_of(kind)) {
        swinging_.push_back({.series = static_cast<std::uint32_t>(i), .measure = measure});
      }
      if (swinging_.size() > first) of.swinging = static_cast<std::uint32_t>(first) + 1;
    }
    if (kind != kind::kGradReduced && kind != kind::kGradUnreduced) continue;
    const auto all = numbers.try_emplace({kind, series[i].optimizer}, gradients_.size()).first;
    if (all->second == gradients_.size())
      gradients_.emplace_back().series = static_cast<std::uint32_t>(i);
    of.gradients = static_cast<std::uint32_t>(all->second) + 1;
  }
}

void LeftLines::add(const LineValue& value) {
  const RowPlace& row = value.place;
  const std::uint32_t tensor = tensors().of[value.series];
  Line& line = lines_[tensor];
  // What changes in each tenth step has one number for each of them.
  const bool is_repeated = of_[tensor].is_own_state && value.norm == line.norm;
  if (!value.largest && !is_repeated) {
    histories_.add(value.series, row.step, value.norm, row,
                   [&](const ClosedRow<RowPlace>& one) { note(tensor, one); });
  }
  const auto add_to_each = [&](auto& lines, std::uint32_t first_from_1) {
    if (first_from_1 == 0 || !std::isfinite(value.norm)) return;
    const auto series = lines[first_from_1 - 1].series;
    for (std::size_t i = first_from_1 - 1; i < lines.size() && lines[i].series == series; ++i) {
      lines[i].add(value);
    }
  };
  add_to_each(shifting_, of_[tensor].shifting);
  add_to_each(swinging_, of_[tensor].swinging);
  changes_.add(value);
  if (of_[tensor].gradients != 0) {
    Gradients& all = gradients_[of_[tensor].gradients - 1];
    if (all.last.step != row.step || all.last.restart != row.restart) all.close();
    all.last = row;
    all.sum_sq += value.norm * value.norm;
    ++all.rows;
  }
  const bool is_behind_gap = line.stride.is_behind_gap(row.step);
  if (line.elements >= 0 && (line.elements != value.elements || is_behind_gap)) {
    line.has_changed = true;
    line.steps = 0;
  } else if (line.step != row.step) {
    ++line.steps;
  }
  line.series = value.series;
  line.elements = value.elements;
  line.step = row.step;
  line.norm = value.norm;
  rank_ = row.rank;
}

// Values that are not finite are not of a step that was taken. With tensors that were frozen or
// thawed the norm is another one.
void LeftLines::Gradients::close() {
  if (rows > 0 && std::isfinite(sum_sq) && last.fate != Fate::skipped) {
    if (rows != rows_before && !search.found()) search = ShiftSearch(kOfGradients);
    rows_before = rows;
    search.add(last, 0.5 * std::log(sum_sq));
  }
  sum_sq = 0.0;
  rows = 0;
}

const ShiftRule& LeftLines::Shifting::rule() const {
  if (measure == Measure::norm) return is_forward ? kOfIds : kOfInputs;
  return measure == Measure::balance ? kOfBalance : kOfBothSigns;
}

// Most have no zeros at all, or never add up to 0.
bool LeftLines::Shifting::pass_over(const LineValue& value) {
  const bool is_zeros = measure == Measure::zeros;
  if (!is_zero || !(is_zeros || measure == Measure::balance)) return false;
  const bool holds =
      is_zeros ? value.zeros == 0.0 : value.norm > 0.0 && std::abs(value.mean) <= kBalanced;
  if (holds) {
    ++rows;
    last = value.place;
    return true;
  }
  if (!is_zeros && rows < ShiftSearch::kYoung) {  // by chance, if at all
    rows = 0;
    return true;
  }
  is_zero = false;
  if (is_zeros && is_forward && rows >= ShiftSearch::kYoung) new_zeros.begin();
  for (std::size_t i = 0; i < std::min(rows, ShiftSearch::kMemory); ++i) {
    search.add(last, is_zeros ? 0.0 : std::log(kBalanced));
  }
  return false;
}

void LeftLines::Shifting::add(const LineValue& value) {
  if (pass_over(value)) return;
  switch (measure) {
    case Measure::norm:
      // A norm is one of so many elements.
      if (value.elements != elements && !search.found()) search = ShiftSearch(rule());
      elements = value.elements;
      return search.add(value.place, std::log(value.norm));
    case Measure::mean:
      return search.add(value.place, value.mean);
    case Measure::zeros:
      if (is_forward && value.zeros > 0.0 && value.zeros < 1.0) {
        frozen.add(value.place, value.zeros);
      }
      new_zeros.add(value.place, value.zeros);
      return search.add(value.place, value.zeros);
    case Measure::largest:
      if (value.elements != elements && !missing.found()) missing = {};
      elements = value.elements;
      return missing.add(value.place, *value.largest);
    case Measure::balance:
      return search.add(value.place, std::log(std::max(std::abs(value.mean), kBalanced)));
    case Measure::rows:
    case Measure::still:
    case Measure::dtype:
    case Measure::sum:
    case Measure::repeats:
    case Measure::given:
    case Measure::jump:
    case Measure::jump_of_zeros:
      return;  // of others
  }
}

// A smaller batch swings more.
void LeftLines::Swinging::add(const LineValue& value) {
  if (value.elements != elements && !search.found()) search = {};
  elements = value.elements;
  search.add(value.place, measure == Measure::norm ? std::log(value.norm) : value.mean);
}

std::vector<std::pair<Shift, std::uint32_t>> LeftLines::shifts() const {
  std::vector<std::pair<Shift, std::uint32_t>> all;
  for (const Gradients& one : gradients_) {
    if (one.search.found()) all.emplace_back(*one.search.found(), one.series);
  }
  return all;
}

std::vector<LineShift> LeftLines::shifts_of_lines() const {
  std::vector<LineShift> all;
  // What is routed has many zeros, and more where the routing learns.
  constexpr double kFew = 0.1;
  for (const Shifting& one : shifting_) {
    const std::optional<Shift>& found = one.search.found();
    const bool is_routed = found && one.measure == Measure::zeros &&
                           std::min(found->row.value, found->row.usual) > kFew;
    if (found && !is_routed) all.push_back({*found, one.series, one.measure, false});
    if (!found && one.new_zeros.found()) {
      all.push_back({*one.new_zeros.found(), one.series, one.measure, false});
    }
    if (one.missing.found()) all.push_back({*one.missing.found(), one.series, one.measure, false});
    if (one.frozen.found()) all.push_back({*one.frozen.found(), one.series, one.measure, true});
  }
  for (const Swinging& one : swinging_) {
    if (const std::optional<Shift> found = one.search.found())
      all.push_back({*found, one.series, one.measure, true});
  }
  changes_.add_found(all);
  return all;
}

void LeftLines::forget() {
  for (Gradients& one : gradients_) one = {.series = one.series};
  for (Shifting& one : shifting_) {
    one = {.series = one.series, .measure = one.measure, .is_forward = one.is_forward};
  }
  for (Swinging& one : swinging_) one = {.series = one.series, .measure = one.measure};
  changes_.forget();
  std::ranges::fill(lines_, Line{});
  left_.clear();
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
  const bool is_young = line.rows <= ShiftSearch::kYoung;
  const bool falls = one.log < one.before.middle();
  // One element that changes its sign is small for a while.
  const bool is_sign = line.elements == 1 && !of_[tensor].is_loss && falls;
  const bool is_let_go = of_[tensor].may_be_clipped && falls;
  if (one.score >= (is_young ? kYoungFarBehind : kFarBehind) && !is_sign && !is_let_go &&
      std::isfinite(one.before.middle()) && !left_.contains(tensor)) {
    Left left = {one.unusual(), line.series};
    left.begins = line.recent.count > 0 && line.recent.places.back().restart != one.row.restart;
    left_.try_emplace(tensor, left);
  }
  if (of_[tensor].is_state) return;
  line.recent.add(one);
  note_gap(tensor);
  if (of_[tensor].is_activation) note_excursions(tensor, one);
}

// Work that fails now and then does not stay away.
void LeftLines::note_excursions(std::uint32_t tensor, const ClosedRow<RowPlace>& one) {
  Line& line = lines_[tensor];
  Excursions& all = line.excursions;
  const bool is_far = one.score >= kBehindAgain && std::isfinite(one.before.middle());
  const bool is_above = one.log > one.before.middle();
  if (!all.left && is_far && all.quiet >= kQuiet && line.rows > ShiftSearch::kYoung) {
    all.left = {.row = one.unusual(), .series = line.series};
    all.since = 0;
    all.is_above = is_above;
  } else if (all.left) {
    if (is_far && is_above == all.is_above && ++all.left->again + 1 >= kTimes) {
      Left& known = left_.try_emplace(tensor, *all.left).first->second;
      const std::int64_t step = all.left->row.row.step;
      // What stays away from the same step on tells more.
      const bool is_as_early = known.row.row.step == step && known.apart == 0.0;
      if (known.row.row.step > step || is_as_early) known = *all.left;
    }
    if (++all.since == kAgain - 1) all.left.reset();
  }
  all.quiet = 2.0 * one.score < kBehindAgain ? all.quiet + 1 : 0;
}

void LeftLines::note_gap(std::uint32_t tensor) {
  static const auto kSmallGap = static_cast<float>(std::log10(kSmall));
  const Line& line = lines_[tensor];
  const Of& of = of_[tensor];
  const bool is_young = line.rows < ShiftSearch::kYoung + kStays;
  float means = 0.0F;
  int rows = kStays;  // that have it
  if (of.is_input) means = line.recent.gap_of_means(kFirstInputs);
  if (of.is_loss && !is_young) means = line.recent.gap_of_means(kFirstLosses);
  if (of.is_activation && !is_young) {
    for (const FirstOfStart& rule : kFirstActivations) {
      const float of_first = line.recent.gap_of_means(rule);
      if (of_first > means) {
        means = of_first;
        rows = rule.rows;
      }
    }
  }
  const auto [gap, width] = line.recent.gap();
  if (gap < kSmallGap && means == 0.0F) return;
  const double apart =
      of.is_loss ? (is_young ? kYoungLossApart : kLossApart) : (is_young ? kApartOfYoung : kApart);
  const bool is_wide = !is_young && of.is_even && gap >= width;
  const bool is_one = is_wide || means > 0.0F || gap >= std::log10(apart);
  if (!is_one) return;
  const Recent::Place& place = line.recent.places[1];
  Left left;
  left.row.score = place.score;
  left.row.usual = std::pow(10.0, place.usual);
  left.row.value = std::pow(10.0, line.recent.logs[History::kMost]);
  left.row.row.restart = place.restart;
  left.row.row.rank = rank_;
  left.row.row.step = place.step;
  left.row.row.seq = place.seq;
  left.row.row.accum = place.accum;
  left.series = line.series;
  left.apart = std::pow(10.0, std::max(gap, means));
  left.means = means > gap ? rows : 0;
  left.begins = line.recent.places[0].restart != place.restart;
  Left& known = left_.try_emplace(tensor, left).first->second;
  if (known.row.row.step >= place.step) known = left;
}

}  // namespace trainmon
