#include "answers/spread.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <span>

namespace trainmon {
namespace {

constexpr double kVariances = 8.0;  // the factor between those before and after
// One number that is far off, or one shift of the mean, widens one part alone.
constexpr std::size_t kPartsBefore = 4, kPartsAfter = 3;
constexpr double kOfParts = 4.0;
constexpr double kUnusual = 1.5;     // in logarithms, than ever before
constexpr double kNarrowest = 1e-6;  // the factor of what does not swing any more
constexpr double kKeeps = 0.95;      // of a variance, in each row

double variance_of(std::span<const double> numbers) {
  return moments_of(numbers, std::identity()).variance;
}

// Their variance is that of rare events: the entropy of a few ids has two or three values.
bool has_few_values(std::span<const double> numbers) {
  const std::set<double> different(numbers.begin(), numbers.end());
  return 2 * different.size() < numbers.size();
}

// The mean of the variances of equal parts, without the largest.
template <std::size_t kParts>
double variance_of_parts(std::span<const double> numbers) {
  const std::size_t size = numbers.size() / kParts;
  double sum = 0.0, largest = 0.0;
  for (std::size_t i = 0; i < kParts; ++i) {
    const double variance = variance_of(numbers.subspan(i * size, size));
    sum += variance;
    largest = std::max(largest, variance);
  }
  return (sum - largest) / static_cast<double>(kParts - 1);
}

}  // namespace

void SpreadSearch::add(const RowPlace& place, double number) {
  has_ended_ |= !std::isfinite(number) || (since_ == kAfter && found());
  if (has_ended_) return;
  const bool is_behind_gap = stride_.is_behind_gap(place.step);
  if (!found() && (is_behind_gap || since_ == kAfter)) {
    if (is_behind_gap) count_ = 0;
    split_.reset();
    since_ = 0;
  }
  std::move(numbers_.begin() + 1, numbers_.end(), numbers_.begin());
  numbers_.back() = number;
  std::move(places_.begin() + 1, places_.end(), places_.begin());
  places_.back() = place;
  places_.back().shape = nullptr;
  ++count_;
  if (split_) ++since_;
  if (split_ || (count_ >= numbers_.size() && is_apart())) split();
}

// With the numbers that came since, the two sides may be alike but for some.
std::optional<Shift> SpreadSearch::found() const {
  return split_ && split_->apart >= 0.5 * std::log(kOfParts) ? split_ : std::nullopt;
}

bool SpreadSearch::is_apart() {
  const auto all = std::span<const double>(numbers_);
  const auto before = all.first(kBefore), after = all.last(kAfter);
  const double was = variance_of(before);
  if (!(was > 0.0)) return false;
  const double is = std::max(variance_of(after), kNarrowest * was);
  const double apart = 0.5 * std::log(is / was);
  const double earlier = most_;
  most_ = std::max(most_, swings_.front());  // windows that share no number with this one
  std::move(swings_.begin() + 1, swings_.end(), swings_.begin());
  swings_.back() = std::abs(apart);
  if (std::abs(apart) < std::max(0.5 * std::log(kVariances), kUnusual * earlier)) return false;
  if (has_few_values(all)) return false;
  return apart > 0.0 ? variance_of_parts<kPartsAfter>(after) >= kOfParts * was
                     : kOfParts * is <= variance_of_parts<kPartsBefore>(before);
}

// The most likely step, of normal numbers with another variance on either side.
void SpreadSearch::split() {
  const auto all = std::span<const double>(numbers_);
  constexpr std::size_t kLeast = kAfter / 3;
  const double narrowest = kNarrowest * variance_of(all);
  double best = 0.0;
  for (std::size_t at = all.size() - places_.size() + 1; at + kLeast <= all.size(); ++at) {
    const auto before = all.first(at), after = all.subspan(at);
    const double was = std::max(variance_of(before), narrowest);
    const double is = std::max(variance_of(after), narrowest);
    const double likely = -static_cast<double>(before.size()) * std::log(was) -
                          static_cast<double>(after.size()) * std::log(is);
    if (at > all.size() - places_.size() + 1 && likely <= best) continue;
    best = likely;
    const RowPlace* const first = &places_[at - (all.size() - places_.size())];
    const double score =
        unusual_of(before.last(History::kMost), std::identity(), *first, after.front()).score;
    split_ = {{score, 0.5 * std::log(was), *first, 0.5 * std::log(is)},
              0.5 * std::abs(std::log(is / was)),
              after.size(),
              first[-1].restart != first->restart};
  }
}

void FrozenSearch::add(const RowPlace& place, double number) {
  if (found_) return;
  if (number != last_) {
    const double difference = number - last_;
    variance_ = kKeeps * variance_ + (1.0 - kKeeps) * 0.5 * difference * difference;
    others_ = std::min(others_ + 1, 2 * kOthers);
    last_ = number;
    first_ = place;
    first_.shape = nullptr;
    same_ = 0;
    return;
  }
  // Those of few elements may be alike by chance, and those that end slowly often are.
  if (same_++ == 0) others_ = std::max(0, others_ - kSame);
  if (same_ < kSame || others_ < kOthers) return;
  const double was = 0.5 * std::log(variance_), apart = -0.5 * std::log(kNarrowest);
  found_ = {{0.0, was, first_, was - apart}, apart, static_cast<std::size_t>(same_ + 1), false};
}

}  // namespace trainmon
