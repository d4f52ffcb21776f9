#include "answers/rank_lines.h"

#include <algorithm>
#include <cmath>

namespace trainmon {
namespace {

constexpr std::size_t kMostRowsOfRank = 500'000;
constexpr double kHalves = 0.35;  // of the difference, by which those of a level side may differ

}  // namespace

void RankLines::add(std::uint32_t tensor, const LineValue& value) {
  std::vector<Sample>& line = lines[tensor];
  if (!(value.norm > 0.0) || !std::isfinite(value.norm)) return;
  const double norm = std::log(value.norm);
  const double rms = norm - 0.5 * std::log(static_cast<double>(value.elements));
  const std::array<float, 4> numbers = {static_cast<float>(norm), static_cast<float>(value.mean),
                                        static_cast<float>(value.zeros), static_cast<float>(rms)};
  if (!line.empty() && line.back().step == value.place.step) {
    Sample& last = line.back();
    ++last.calls;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      last.numbers[i] += (numbers[i] - last.numbers[i]) / static_cast<float>(last.calls);
    }
    return;
  }
  if (rows++ >= kMostRowsOfRank) return;
  series[tensor] = value.series;
  line.push_back({value.place.step, value.place.seq, value.place.restart, 1, numbers});
}

std::vector<std::pair<const Sample*, const Sample*>> pairs_of_steps(
    const std::vector<Sample>& one, const std::vector<Sample>& other) {
  std::vector<std::pair<const Sample*, const Sample*>> pairs;
  for (auto a = one.begin(), b = other.begin(); a != one.end() && b != other.end();) {
    if (a->step == b->step) pairs.emplace_back(&*a, &*b);
    const bool is_behind = a->step <= b->step;
    if (b->step <= a->step) ++b;
    if (is_behind) ++a;
  }
  return pairs;
}

double Sums::variance_of_mean(std::size_t begin, std::size_t end) const {
  const auto count = static_cast<double>(end - begin);
  const double middle = mean(begin, end);
  const double squares = (squares_[end] - squares_[begin]) / count - middle * middle;
  return std::max(squares, 0.0) / (count - 1.0);
}

double Sums::errors_between(std::size_t begin, std::size_t at, std::size_t end) const {
  const double error = std::sqrt(variance_of_mean(begin, at) + variance_of_mean(at, end));
  return std::abs(mean(at, end) - mean(begin, at)) / std::max(error, 1e-6);
}

bool Sums::is_level(std::size_t begin, std::size_t end, double apart) const {
  const std::size_t middle = begin + (end - begin) / 2;
  return std::abs(mean(begin, middle) - mean(middle, end)) <= kHalves * std::abs(apart);
}

}  // namespace trainmon
