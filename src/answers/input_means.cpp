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

constexpr double kErrorsOfMeans = 6.0;   // standard errors
constexpr double kTimesAnyBefore = 2.0;  // as far apart as any two means before
constexpr std::int64_t kNearSteps = 64;  // what is found there is the same change

bool is_given(const Series& series) {
  return series.kind == kind::kInput || series.kind == kind::kInputEntropy;
}

// The logarithm of the mean of ids, or of the root mean square of other elements. An entropy is one
// number.
std::optional<double> number_of(const ReadRow& row, const Series& series) {
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

std::optional<StepMeans::Change> StepMeans::change() const {
  std::vector<std::size_t> places;  // of means with a row
  std::vector<double> numbers;
  Sums sums;
  for (std::size_t i = 0; i < means_.size(); ++i) {
    if (means_[i].rows == 0) continue;
    places.push_back(i);
    numbers.push_back(means_[i].sum / static_cast<double>(means_[i].rows));
    sums.add(numbers.back());
  }
  // So many places before must tell how far means are apart anyway.
  constexpr std::size_t kFewestBefore = kSteps;
  if (places.size() < 3 * kSteps + kFewestBefore) return std::nullopt;
  std::vector<double> errors(places.size(), 0.0);
  for (std::size_t at = kSteps; at + kSteps <= places.size(); ++at) {
    errors[at] = sums.errors_between(at - kSteps, at, at + kSteps);
  }
  double before = *std::ranges::max_element(std::span(errors).first(kSteps + kFewestBefore));
  for (std::size_t at = 2 * kSteps + kFewestBefore; at + kSteps <= places.size(); ++at) {
    before = std::max(before, errors[at - kSteps]);
    const auto around = std::span(errors).subspan(at - kSteps, 2 * kSteps);
    const bool is_clearest = errors[at] == *std::ranges::max_element(around);
    if (!is_clearest || errors[at] < std::max(kErrorsOfMeans, kTimesAnyBefore * before)) continue;
    const std::span all(numbers);
    const double independent =
        errors[at] * independence(all.subspan(at - kSteps, kSteps), all.subspan(at, kSteps));
    if (independent < kErrorsOfMeans) continue;
    const Mean& one = means_[places[at]];
    Change change;
    change.restart = one.restart;
    change.rank = one.rank;
    change.step = first_ + static_cast<std::int64_t>(places[at]) * width_;
    change.seq = one.seq;
    change.begins = one.restart != means_[places[at - 1]].restart;
    change.before = sums.mean(at - kSteps, at);
    change.after = sums.mean(at, at + kSteps);
    change.errors = independent;
    change.steps = static_cast<std::int64_t>(places[at + kSteps - 1] - places[at] + 1) * width_;
    return change;
  }
  return std::nullopt;
}

std::optional<LeftStep> input_means(const OpenedRun& run, ReadOptions options,
                                    const Diagnosis& diagnosis) {
  if (diagnosis.verdict) return std::nullopt;
  options.all_restarts = options.merged = false;
  if (options.kinds.empty()) {
    options.kinds = {std::string(kind::kInput), std::string(kind::kInputEntropy)};
  }
  const RunStream stream(run, options);
  const std::vector<Series>& series = stream.facts().series;
  if (std::ranges::none_of(series, is_given)) return std::nullopt;
  const TensorNumbers tensors(series);
  std::vector<StepMeans> means(tensors.count);
  std::vector<const Series*> of(tensors.count, nullptr);
  RunStream::Take take;
  take.row = [&](const ReadRow& row) {
    const Series& one = series[row.series];
    const auto number = is_given(one) ? number_of(row, one) : std::nullopt;
    if (!number) return;
    of[tensors.of[row.series]] = &one;
    means[tensors.of[row.series]].add(row, *number);
  };
  constexpr std::array kStats = {Stat::norm, Stat::count, Stat::mean};
  take.columns = columns_of(std::span<const Stat>(kStats));
  std::vector<Damage> said_before;
  for (const RunStream::Piece& piece : stream.pieces()) stream.read(piece, take, said_before);
  std::optional<StepMeans::Change> clearest;
  LeftStep step;
  for (std::size_t i = 0; i < means.size(); ++i) {
    const std::optional<StepMeans::Change> change = means[i].change();
    if (!change || (clearest && clearest->errors >= change->errors)) continue;
    clearest = change;
    step.series = *of[i];
  }
  if (!clearest) return std::nullopt;
  const bool is_noticed = std::ranges::any_of(diagnosis.findings, [&](const auto& one) {
    return one.check == detect::Check::input && std::abs(one.step - clearest->step) <= kNearSteps;
  });
  if (is_noticed) return std::nullopt;
  step.row.restart = clearest->restart;
  step.row.rank = clearest->rank;
  step.row.step = clearest->step;
  step.row.seq = clearest->seq;
  step.norm = std::exp(clearest->after);
  step.usual = std::exp(clearest->before);
  step.score = clearest->errors;
  step.measure = Measure::given;
  step.means = static_cast<int>(clearest->steps);
  step.begins = clearest->begins;
  step.ranks = stream.facts().ranks;
  return step;
}

void add_input_means(std::optional<LeftHistory>& found, const OpenedRun& run,
                     const ReadOptions& options, const Diagnosis& diagnosis) {
  std::optional<LeftStep> given = input_means(run, options, diagnosis);
  if (!given) return;
  if (!found) {
    found = LeftHistory{std::move(*given), {}};
    return;
  }
  const auto is_near = [&](const LeftStep& one) {
    return std::abs(one.row.step - given->row.step) <= kNearSteps;
  };
  if (is_near(*found) || std::ranges::any_of(found->others, is_near)) return;
  found->others.push_back(std::move(*given));
  std::ranges::stable_sort(found->others, {}, [](const LeftStep& one) { return one.row.step; });
}

}  // namespace trainmon
