#include "answers/history.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <tuple>

#include "trainmon/stat.h"

namespace trainmon {
namespace {

constexpr double kLeastSpread = 0.01;  // 2 %
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Of ascending numbers.
double middle_of(std::span<const double> ascending) {
  const std::size_t half = ascending.size() / 2;
  return ascending.size() % 2 == 1 ? ascending[half]
                                   : (ascending[half - 1] + ascending[half]) / 2.0;
}

}  // namespace

double History::score(double log) const {
  if (count_ < kLeast) return kNone;
  const double zero = (std::isinf(log) ? least_ : std::min(log, least_)) - 1.0;
  if (std::isinf(zero)) return 0.0;  // all are 0
  std::array<double, kMost> before = logs_;
  const std::span all(before.data(), count_);
  for (double& one : all) one = std::max(one, zero);
  const double center = middle_of(all);
  for (double& one : all) one = std::abs(one - center);
  std::ranges::sort(all);
  const double spread = std::max(1.4826 * middle_of(all), kLeastSpread);
  return std::abs(std::max(log, zero) - center) / spread;
}

double History::middle() const {
  return count_ == 0 ? kNone : middle_of({logs_.data(), count_});
}

double History::usual() const {
  return std::pow(10.0, middle());
}

void History::add(double log) {
  if (!std::isinf(log)) least_ = std::min(least_, log);
  auto last = logs_.begin() + static_cast<std::ptrdiff_t>(count_);
  if (count_ < kMost) {
    ++count_;
  } else {
    const auto oldest = std::lower_bound(logs_.begin(), last, order_[next_]);
    std::move(oldest + 1, last, oldest);
    --last;
  }
  const auto at = std::upper_bound(logs_.begin(), last, log);
  std::move_backward(at, last, last + 1);
  *at = log;
  order_[next_] = log;
  next_ = (next_ + 1) % kMost;
}

std::optional<double> history_value(const ReadRow& row, const Series& series, Stat stat) {
  if (series.dtype >= DType::int64 || row.state.count == 0 || (row.flags & flag::kNotReady) != 0) {
    return std::nullopt;
  }
  if (is_bad(row)) {
    return row.fate == Fate::skipped && is_gradient(series.kind) ? -kInfinity : kInfinity;
  }
  const double value = derive(stat, row.state);
  // What is infinite of a mask is no measure of it.
  const bool is_of_mask = std::isinf(value) && (row.flags & flag::kMasked) != 0;
  if (std::isnan(value) || is_of_mask) return std::nullopt;
  return std::isinf(value) ? kInfinity : value;
}

bool is_more_unusual(double score, const BadPlace& place, double than, const BadPlace& than_place) {
  if (std::isnan(score) || std::isnan(than)) return !std::isnan(score) && std::isnan(than);
  return score != than ? score > than : place < than_place;
}

TensorNumbers::TensorNumbers(const std::vector<Series>& series) {
  using Tensor = std::tuple<std::string_view, std::int32_t, std::string_view, std::string_view>;
  std::map<Tensor, std::uint32_t> numbers;
  for (const Series& one : series) {
    const Tensor tensor = {one.kind, one.chunk, one.name, one.element};
    of.push_back(numbers.try_emplace(tensor, count).first->second);
    count = static_cast<std::uint32_t>(numbers.size());
  }
}

}  // namespace trainmon
