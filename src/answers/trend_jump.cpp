#include "answers/trend_jump.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace trainmon {
namespace {

constexpr std::size_t kJumpSide = TrendJump::kWindow;
constexpr double kLeastEarlierErrors = 3.0;  // standard errors that any line may have
constexpr std::size_t kJumpApart = 8;        // rows on either side of a place that are no clearer
// Of a jump that counts with others, and of a clear one. They are standard errors, and how many
// times those of any place before; the same of means.
constexpr double kJumpErrors = 6.0, kJumpTimes = 2.0, kJumpTimesOfMeans = 1.5;
constexpr double kClearJumpErrors = 7.0, kClearJumpTimes = 2.5, kClearJumpTimesOfMeans = 2.0;

// Sums of numbers, of their products with their places, and of their squares, up to each place.
class PlaceSums {
 public:
  explicit PlaceSums(std::span<const double> numbers) : sums_(numbers.size() + 1) {
    double middle = 0.0;
    for (const double one : numbers) middle += one / static_cast<double>(numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double y = numbers[i] - middle;
      sums_[i + 1] = {sums_[i].sum + y, sums_[i].by_place + static_cast<double>(i) * y,
                      sums_[i].squares + y * y};
    }
  }
  struct Sum {
    double sum = 0.0, by_place = 0.0, squares = 0.0;
  };
  Sum of(std::size_t begin, std::size_t end) const {
    return {sums_[end].sum - sums_[begin].sum, sums_[end].by_place - sums_[begin].by_place,
            sums_[end].squares - sums_[begin].squares};
  }

 private:
  std::vector<Sum> sums_;
};

// The inverse_of_normal of the normal equations of y = a + b x + c [x >= 0], x from -kJumpSide to
// kJumpSide - 1.
using Matrix3 = std::array<std::array<double, 3>, 3>;
const Matrix3& inverse_of_normal() {
  static const Matrix3 kInverse = [] {
    constexpr auto kN = static_cast<double>(kJumpSide);
    const double xx = kN * (2.0 * kN * kN + 1.0) / 3.0;  // of the squares of x
    const double behind = kN * (kN - 1.0) / 2.0;         // of x >= 0
    const Matrix3 m = {{{2.0 * kN, -kN, kN}, {-kN, xx, behind}, {kN, behind, kN}}};
    const auto minor = [&](std::size_t r, std::size_t c) {
      const std::size_t r1 = (r + 1) % 3, r2 = (r + 2) % 3, c1 = (c + 1) % 3, c2 = (c + 2) % 3;
      return m[r1][c1] * m[r2][c2] - m[r1][c2] * m[r2][c1];
    };
    const double determinant =
        m[0][0] * minor(0, 0) + m[0][1] * minor(0, 1) + m[0][2] * minor(0, 2);
    Matrix3 inverted = {};
    for (std::size_t r = 0; r < 3; ++r) {
      for (std::size_t c = 0; c < 3; ++c) inverted[c][r] = minor(r, c) / determinant;
    }
    return inverted;
  }();
  return kInverse;
}

// By least squares (any text on linear regression has it), and of two means.
TrendJump jump_at(const PlaceSums& moments, std::size_t at) {
  constexpr auto kN = static_cast<double>(kJumpSide);
  constexpr double kLeastError = 1e-6;  // of numbers that are all alike, but for float32
  const PlaceSums::Sum before = moments.of(at - kJumpSide, at),
                       after = moments.of(at, at + kJumpSide);
  const double sum = before.sum + after.sum;
  const std::array<double, 3> y = {
      sum, before.by_place + after.by_place - static_cast<double>(at) * sum, after.sum};
  const Matrix3& inverted = inverse_of_normal();
  std::array<double, 3> of = {};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) of[i] += inverted[i][j] * y[j];
  }
  const double explained = of[0] * y[0] + of[1] * y[1] + of[2] * y[2];
  const double rest = std::max(0.0, before.squares + after.squares - explained);
  const auto variance = [&](const PlaceSums::Sum& side) {
    return std::max(0.0, side.squares / kN - side.sum * side.sum / kN / kN);
  };
  TrendJump one;
  one.at = at;
  one.jump = of[2];
  one.errors =
      std::abs(of[2]) / (std::sqrt(rest / (2.0 * kN - 3.0) * inverted[2][2]) + kLeastError);
  one.errors_of_means =
      std::abs(after.sum - before.sum) / kN /
      (std::sqrt((variance(before) + variance(after)) / (kN - 1.0)) + kLeastError);
  return one;
}

// Whether half of what the means differ by lies between a few rows on either side. What a training
// learns in a while is no jump.
bool is_at_once(std::span<const double> numbers, const TrendJump& one) {
  constexpr std::size_t kBeside = 4;
  constexpr double kLeastShare = 0.5;
  double beside = 0.0;
  for (std::size_t i = 0; i < kBeside; ++i) {
    beside += (numbers[one.at + i] - numbers[one.at - 1 - i]) / static_cast<double>(kBeside);
  }
  return beside / (one.after - one.before) >= kLeastShare;
}

bool is_beyond(const TrendJump& one, double errors, double times, double times_of_means) {
  return one.errors >= errors && one.errors >= times * std::max(one.earlier, kLeastEarlierErrors) &&
         one.errors_of_means >=
             times_of_means * std::max(one.earlier_of_means, kLeastEarlierErrors);
}

}  // namespace

bool TrendJump::is_clear() const {
  return is_beyond(*this, kClearJumpErrors, kClearJumpTimes, kClearJumpTimesOfMeans);
}

std::vector<TrendJump> trend_jumps(std::span<const double> numbers) {
  std::vector<TrendJump> found;
  if (numbers.size() < TrendJump::kEarlier + kJumpSide) return found;
  const PlaceSums moments(numbers);
  std::vector<TrendJump> all(numbers.size() - kJumpSide + 1);  // by place
  for (std::size_t at = kJumpSide; at < all.size(); ++at) all[at] = jump_at(moments, at);
  double earlier = 0.0, earlier_of_means = 0.0;
  for (std::size_t at = kJumpSide; at < all.size(); ++at) {
    TrendJump& one = all[at];
    if (at >= 2 * kJumpSide) {
      earlier = std::max(earlier, all[at - kJumpSide].errors);
      earlier_of_means = std::max(earlier_of_means, all[at - kJumpSide].errors_of_means);
    }
    one.earlier = earlier;
    one.earlier_of_means = earlier_of_means;
    if (at < TrendJump::kEarlier || !is_beyond(one, kJumpErrors, kJumpTimes, kJumpTimesOfMeans))
      continue;
    const std::size_t end = std::min(all.size(), at + kJumpApart + 1);
    const bool is_clearest =
        std::all_of(all.begin() + static_cast<std::ptrdiff_t>(at - kJumpApart),
                    all.begin() + static_cast<std::ptrdiff_t>(end),
                    [&](const TrendJump& other) { return other.errors <= one.errors; });
    if (!is_clearest) continue;
    for (std::size_t i = at - kJumpSide; i < at; ++i) one.before += numbers[i] / kJumpSide;
    for (std::size_t i = at; i < at + kJumpSide; ++i) one.after += numbers[i] / kJumpSide;
    if (is_at_once(numbers, one)) found.push_back(one);
  }
  return found;
}

}  // namespace trainmon
