#include "answers/input_means.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "answers/diagnose.h"
#include "answers/rank_lines.h"
#include "model/kinds.h"
#include "read/run_stream.h"

namespace trainmon {
namespace {

constexpr double kErrorsOfMeans = 6.0;               // standard errors
constexpr double kTimesAnyBefore = 2.0;              // as far apart as any two means before
constexpr double kRepeats = 0.8, kGoTogether = 0.7;  // correlations
constexpr std::int64_t kNearSteps = 64;              // what is found there is the same change

bool is_given(const Series& series) {
  return series.kind == kind::kInput || series.kind == kind::kInputEntropy;
}

// The logarithm of the mean of ids, or of the root mean square of other elements. An entropy is one
// number.
std::optional<double> compared_number(const ReadRow& row, const Series& series) {
  const auto logarithm = [](double number) {
    return number > 0.0 && std::isfinite(number) ? std::optional(std::log(number)) : std::nullopt;
  };
  if (series.kind == kind::kInput && is_of_ids(series.dtype)) {
    const bool has_mean = row.state.count > 0 && (row.flags & flag::kNotReady) == 0;
    return has_mean ? logarithm(derive(Stat::mean, row.state)) : std::nullopt;
  }
  const std::optional<double> norm = history_value(row, series, Stat::norm);
  if (!norm) return std::nullopt;
  return logarithm(*norm / std::sqrt(static_cast<double>(row.state.count)));
}

// Batches of one document after another go with the one before. Then the standard error of a mean
// is larger, by one over this. Of what is left beside the means of both parts.
double independence(std::span<const double> before, std::span<const double> after) {
  double squares = 0.0, products = 0.0;
  for (const std::span<const double> part : {before, after}) {
    const double mean =
        std::accumulate(part.begin(), part.end(), 0.0) / static_cast<double>(part.size());
    for (std::size_t i = 0; i < part.size(); ++i) {
      squares += (part[i] - mean) * (part[i] - mean);
      if (i > 0) products += (part[i] - mean) * (part[i - 1] - mean);
    }
  }
  if (squares == 0.0) return 1.0;
  const double correlation = std::clamp(products / squares, 0.0, 0.99);
  return std::sqrt((1.0 - correlation) / (1.0 + correlation));
}

// Takes the median away, and what is farther from it than most are, so that a few cannot tell.
// Whether most differ at all.
bool keep_to_range(std::vector<double>& numbers) {
  constexpr double kDeviations = 4.0;  // median ones
  const auto median = [](std::vector<double> of) {
    const auto middle = of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2);
    std::ranges::nth_element(of, middle);
    return *middle;
  };
  const double middle = median(numbers);
  std::vector<double> sizes;
  for (double& one : numbers) sizes.push_back(std::abs(one -= middle));
  const double most = kDeviations * median(std::move(sizes));
  double mean = 0.0;
  for (double& one : numbers) {
    one = std::clamp(one, -most, most);
    mean += one / static_cast<double>(numbers.size());
  }
  for (double& one : numbers) one -= mean;
  return most > 1e-6;
}

}  // namespace

void StepMeans::Mean::add(const Mean& other) {
  if (rows == 0) {
    *this = other;
    return;
  }
  rows += other.rows;
  sum += other.sum;
}

void StepMeans::add(const RowPlace& row, double number) {
  if (first_ < 0) first_ = row.step;
  if (row.step < first_) return;
  while (static_cast<std::size_t>((row.step - first_) / width_) >= kMostMeans) {
    for (std::size_t i = 0; i < means_.size(); ++i) {
      if (i % 2 == 0) {
        means_[i / 2] = means_[i];
      } else if (means_[i].rows > 0) {
        means_[i / 2].add(means_[i]);
      }
    }
    means_.resize((means_.size() + 1) / 2);
    width_ *= 2;
  }
  const auto place = static_cast<std::size_t>((row.step - first_) / width_);
  if (place >= means_.size()) means_.resize(place + 1);
  means_[place].add({row.restart, row.rank, row.seq, 1, number});
}

StepMeans::Numbers StepMeans::numbers() const {
  Numbers all;
  for (std::size_t i = 0; i < means_.size(); ++i) {
    if (means_[i].rows == 0) continue;
    all.places.push_back(i);
    all.numbers.push_back(means_[i].sum / static_cast<double>(means_[i].rows));
  }
  return all;
}

RowPlace StepMeans::place_of(std::size_t place) const {
  const Mean& one = means_[place];
  RowPlace row;
  row.restart = one.restart;
  row.rank = one.rank;
  row.step = first_ + static_cast<std::int64_t>(place) * width_;
  row.seq = one.seq;
  return row;
}

std::optional<StepMeans::Change> StepMeans::change() const {
  const auto [places, all] = numbers();
  // So many places before must tell how far means are apart anyway.
  constexpr std::size_t kFewestBefore = kSteps;
  if (all.size() < 3 * kSteps + kFewestBefore) return std::nullopt;
  Sums sums;
  for (const double one : all) sums.add(one);
  std::vector<double> errors(all.size(), 0.0);
  for (std::size_t at = kSteps; at + kSteps <= all.size(); ++at) {
    errors[at] = sums.errors_between(at - kSteps, at, at + kSteps);
  }
  double before = *std::ranges::max_element(std::span(errors).first(kSteps + kFewestBefore));
  for (std::size_t at = 2 * kSteps + kFewestBefore; at + kSteps <= all.size(); ++at) {
    before = std::max(before, errors[at - kSteps]);
    const auto around = std::span(errors).subspan(at - kSteps, 2 * kSteps);
    const bool is_clearest = errors[at] == *std::ranges::max_element(around);
    if (!is_clearest || errors[at] < std::max(kErrorsOfMeans, kTimesAnyBefore * before)) continue;
    const std::span numbers(all);
    const double independent = errors[at] * independence(numbers.subspan(at - kSteps, kSteps),
                                                         numbers.subspan(at, kSteps));
    if (independent < kErrorsOfMeans) continue;
    Change change;
    change.first = place_of(places[at]);
    change.begins = change.first.restart != place_of(places[at - 1]).restart;
    change.before = sums.mean(at - kSteps, at);
    change.after = sums.mean(at, at + kSteps);
    change.errors = independent;
    change.steps = static_cast<std::int64_t>(places[at + kSteps - 1] - places[at] + 1) * width_;
    return change;
  }
  return std::nullopt;
}

std::optional<StepMeans::Repeat> StepMeans::repeat() const {
  auto [places, all] = numbers();
  all.resize(std::min(all.size(), kMostPairs));
  if (all.size() < kShortest + kFewestPairs || !keep_to_range(all)) return std::nullopt;
  std::vector<double> squares = {0.0};  // of those before each
  for (const double one : all) squares.push_back(squares.back() + one * one);
  const auto correlation = [&](std::size_t lag) {
    const std::size_t pairs = all.size() - lag;
    const double products = std::inner_product(all.begin() + static_cast<std::ptrdiff_t>(lag),
                                               all.end(), all.begin(), 0.0);
    const double sizes = (squares.back() - squares[lag]) * squares[pairs];
    return sizes > 0.0 ? products / std::sqrt(sizes) : 0.0;
  };
  for (std::size_t lag = 1; lag < kShortest; ++lag) {
    if (correlation(lag) >= kGoTogether) return std::nullopt;
  }
  for (std::size_t lag = kShortest; lag + kFewestPairs <= all.size(); ++lag) {
    const double one = correlation(lag);
    if (one < kRepeats) continue;
    return Repeat{place_of(places[lag]),
                  static_cast<std::int64_t>(places[lag] - places[0]) * width_, one};
  }
  return std::nullopt;
}

namespace {

LeftStep left_step_of(const StepMeans::Change& change) {
  LeftStep step;
  step.row = change.first;
  step.norm = std::exp(change.after);
  step.usual = std::exp(change.before);
  step.score = change.errors;
  step.measure = Measure::given;
  step.means = static_cast<int>(change.steps);
  step.begins = change.begins;
  return step;
}

LeftStep left_step_of(const StepMeans::Repeat& repeat) {
  LeftStep step;
  step.row = repeat.first;
  step.norm = repeat.correlation;
  step.usual = static_cast<double>(repeat.steps);
  step.score = repeat.correlation;
  step.measure = Measure::repeats;
  step.means = static_cast<int>(repeat.steps);
  return step;
}

}  // namespace

std::vector<LeftStep> input_means(const OpenedRun& run, ReadOptions options,
                                  const Diagnosis& diagnosis) {
  std::vector<LeftStep> steps;
  if (diagnosis.verdict) return steps;
  options.all_restarts = options.merged = false;
  if (options.kinds.empty()) {
    options.kinds = {std::string(kind::kInput), std::string(kind::kInputEntropy)};
  }
  const RunStream stream(run, options);
  const std::vector<Series>& series = stream.facts().series;
  if (std::ranges::none_of(series, is_given)) return steps;
  const TensorNumbers tensors(series);
  std::vector<StepMeans> means(tensors.count);
  std::vector<const Series*> of(tensors.count, nullptr);
  RunStream::Take take;
  take.row = [&](const ReadRow& row) {
    const Series& one = series[row.series];
    const auto number = is_given(one) ? compared_number(row, one) : std::nullopt;
    if (!number) return;
    of[tensors.of[row.series]] = &one;
    means[tensors.of[row.series]].add(row, *number);
  };
  constexpr std::array kStats = {Stat::norm, Stat::count, Stat::mean};
  take.columns = columns_of(std::span<const Stat>(kStats));
  std::vector<Damage> said_before;
  for (const RunStream::Piece& piece : stream.pieces()) stream.read(piece, take, said_before);
  const auto add_clearest = [&](const auto& found_in) {
    std::optional<LeftStep> clearest;
    for (std::size_t i = 0; i < means.size(); ++i) {
      const auto found = found_in(means[i]);
      if (!found) continue;
      LeftStep step = left_step_of(*found);
      if (clearest && clearest->score >= step.score) continue;
      step.series = *of[i];
      step.ranks = stream.facts().ranks;
      clearest = std::move(step);
    }
    if (!clearest) return;
    const bool is_noticed = std::ranges::any_of(diagnosis.findings, [&](const auto& one) {
      return one.check == detect::Check::input &&
             std::abs(one.step - clearest->row.step) <= kNearSteps;
    });
    if (!is_noticed) steps.push_back(std::move(*clearest));
  };
  add_clearest([](const StepMeans& one) { return one.repeat(); });
  add_clearest([](const StepMeans& one) { return one.change(); });
  return steps;
}

void add_input_means(std::optional<LeftHistory>& found, const OpenedRun& run,
                     const ReadOptions& options, const Diagnosis& diagnosis) {
  for (LeftStep& given : input_means(run, options, diagnosis)) {
    const auto is_near = [&](const LeftStep& one) {
      return std::abs(one.row.step - given.row.step) <= kNearSteps;
    };
    add_unless(is_near, std::move(given), found);
  }
}

}  // namespace trainmon
