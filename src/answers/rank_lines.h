// The activations of a rank as numbers of its steps, and means of any part of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "answers/left_lines.h"
#include "answers/line_value.h"

namespace trainmon {

// Of a line on a rank; of several calls in a step the mean.
struct Sample {
  std::int64_t step;
  std::uint64_t seq;
  std::int32_t restart;
  std::int32_t calls;
  // By kMeasures the logarithm of the norm, and the mean. Then zeros, and the logarithm of the root
  // mean square.
  std::array<float, 4> numbers;
};
inline constexpr std::array kMeasures = {Measure::norm, Measure::mean};
inline constexpr std::size_t kZeros = 2, kLogRms = 3;

// The lines of one rank, by tensor. Of at most 500,000 rows; further ones are left out.
struct RankLines {
  RankLines(int number, std::size_t tensors) : rank(number), lines(tensors), series(tensors) {}

  int rank;  // -1: none
  std::size_t rows = 0;
  std::vector<std::vector<Sample>> lines;
  std::vector<std::uint32_t> series;

  // A row without a finite norm above 0 is left out.
  void add(std::uint32_t tensor, const LineValue& value);
};

// Of the steps that both have.
std::vector<std::pair<const Sample*, const Sample*>> pairs_of_steps(
    const std::vector<Sample>& one, const std::vector<Sample>& other);

// Sums of what comes before each place, for means and variances of any part.
class Sums {
 public:
  void add(double number) {
    sums_.push_back(sums_.back() + number);
    squares_.push_back(squares_.back() + number * number);
  }
  double mean(std::size_t begin, std::size_t end) const {
    return (sums_[end] - sums_[begin]) / static_cast<double>(end - begin);
  }
  // How many standard errors lie between the means of begin..at and at..end. Errors below 1e-6 are
  // those of numbers that are all alike, but for the rounding of their float32.
  double errors_between(std::size_t begin, std::size_t at, std::size_t end) const;
  // Whether that part has about one mean from end to end, for means on either side of a step that
  // are so far apart.
  bool is_level(std::size_t begin, std::size_t end, double apart) const;

 private:
  double variance_of_mean(std::size_t begin, std::size_t end) const;

  std::vector<double> sums_ = {0.0}, squares_ = {0.0};
};

}  // namespace trainmon
