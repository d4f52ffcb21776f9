// How unusual values are in the history of their own tensor. docs/questions.md defines it for
// `trainmon top` and for the page of `trainmon report`.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "model/first_bad.h"
#include "trainmon/read.h"

namespace trainmon {

// The up to 16 values before the next one, as log10 of their sizes: a value and its negative are
// alike. That of 0 is -infinity, and counts as one less than the least finite one so far.
class History {
 public:
  static constexpr std::size_t kMost = 16;
  static constexpr std::size_t kLeast = 8;

  // The distance of the next one from the median of those before it. The unit is 1.4826 times
  // their median absolute deviation, which counts as 0.01 at the least. NaN where fewer than 8
  // are before it.
  double score(double log) const;
  // That median, with -infinity for 0; NaN where none is before.
  double middle() const;
  // The size whose log10 it is.
  double usual() const;
  void add(double log);

 private:
  std::array<double, kMost> logs_ = {};   // ascending
  std::array<double, kMost> order_ = {};  // the same as they came; the oldest of 16 is at next_
  std::size_t count_ = 0;
  std::size_t next_ = 0;
  double least_ = std::numeric_limits<double>::infinity();  // that is finite, of all that came
};

// A row of a line, which is a tensor on a rank, beside the history of that line. `Row` says which
// row it is: as much of it as somebody wants to keep.
template <typename Row>
struct Unusual {
  double score = std::numeric_limits<double>::quiet_NaN();  // infinite: the row is not finite
  double usual = std::numeric_limits<double>::quiet_NaN();  // History::usual() before it
  Row row = {};
  double value = std::numeric_limits<double>::quiet_NaN();
};

// A row with a finite value, as its line hands it on.
template <typename Row>
struct ClosedRow {
  double log;  // log10 of its size
  double score;
  double value;
  const Row& row;
  const History& before;

  // For those that are kept: usual() takes a power.
  Unusual<Row> unusual() const { return {score, before.usual(), row, value}; }
};

// How far apart the steps of neighbouring rows of a line are.
class Stride {
 public:
  // To be told of each row. Whether rows lack before it, as where recording was paused: it is
  // further away than History::kMost rows are.
  bool is_behind_gap(std::int64_t step) {
    const std::int64_t apart = step - last_;
    const bool is_gap = has_last_ && apart > static_cast<std::int64_t>(History::kMost) * usual_;
    if (has_last_ && apart > 0 && !is_gap) usual_ = apart;
    last_ = step;
    has_last_ = true;
    return is_gap;
  }

 private:
  std::int64_t last_ = 0, usual_ = 1;
  bool has_last_ = false;
};

// From this score on a row left its history so far behind as those of healthy trainings do not.
// After zeros alone any value does: it is no such row.
inline constexpr double kFarBehind = 50.0;

// Who does not ask for the values of a line.
struct NotAsked {
  template <typename... Rows>
  void operator()(const Rows&...) const {}
};

// What a row of a series adds to a history: its value of a statistic. It is infinite where the
// row has elements that are not finite, -infinite where a loss scaler skipped its step for that.
// It is nullopt where the row says nothing: an integer, such as the number of a token, a row
// without elements or without values.
std::optional<double> history_value(const ReadRow& row, const Series& series, Stat stat);

// Whether a line with this score and place leads another one in a list of the most unusual. The
// earlier one leads among equals, and lines without a score are last.
bool is_more_unusual(double score, const BadPlace& place, double than, const BadPlace& than_place);

// The rows of one line in the order in which they were recorded.
template <typename Row>
class LineHistory {
 public:
  // The last of several rows of a step is its value. What is not finite counts wherever it is,
  // and the first such row is the most unusual one. One of a skipped step is so only where there
  // is no other. closed(ClosedRow) is given each finite value, once the next step begins or the
  // line ends.
  template <typename Closed = NotAsked>
  void add(std::int64_t step, double value, const Row& row, const Closed& closed = {}) {
    if (has_bad_) return;
    if (has_last_ && step != step_) close(closed);
    if (!std::isfinite(value)) {
      has_bad_ = value > 0.0;
      has_last_ = false;
      if (!has_bad_ && std::isinf(found_.score)) return;
      found_ = {std::numeric_limits<double>::infinity(), history_.usual(), row, value};
      return;
    }
    step_ = step;
    value_ = value;
    row_ = row;
    has_last_ = true;
  }
  template <typename Closed = NotAsked>
  const Unusual<Row>& end(const Closed& closed = {}) {
    if (has_last_) close(closed);
    return found_;
  }

 private:
  template <typename Closed>
  void close(const Closed& closed) {
    const double log = std::log10(std::abs(value_));
    const ClosedRow<Row> one = {log, history_.score(log), value_, row_, history_};
    closed(one);
    if (!std::isnan(one.score) && !(one.score <= found_.score)) found_ = one.unusual();
    history_.add(log);
    has_last_ = false;
  }

  History history_;
  Unusual<Row> found_;
  std::int64_t step_ = 0;
  double value_ = 0.0;
  Row row_ = {};
  bool has_last_ = false;
  bool has_bad_ = false;  // not finite, and not of a skipped step
};

// For each series the number of its tensor, from 0 on. A tensor is several series where it
// changed its dtype or where each rank has a part of it.
struct TensorNumbers {
  explicit TensorNumbers(const std::vector<Series>& series);
  std::vector<std::uint32_t> of;  // by series
  std::uint32_t count = 0;
};

// The lines of one rank after the other.
template <typename Row>
class RankHistories {
 public:
  explicit RankHistories(const std::vector<Series>& series)
      : tensors_(series), lines_(tensors_.count) {}

  const TensorNumbers& tensors() const { return tensors_; }
  template <typename Closed = NotAsked>
  void add(std::uint32_t series, std::int64_t step, double value, const Row& row,
           const Closed& closed = {}) {
    lines_[tensors_.of[series]].add(step, value, row, closed);
  }
  // take(tensor, Unusual) for each tensor with a score, ascending; forgets all. closed(tensor,
  // ClosedRow) is as closed() of LineHistory.
  template <typename Take, typename Closed = NotAsked>
  void end_rank(const Take& take, const Closed& closed = {}) {
    for (std::uint32_t i = 0; i < lines_.size(); ++i) {
      const Unusual<Row>& found = lines_[i].end([&](const ClosedRow<Row>& one) { closed(i, one); });
      if (!std::isnan(found.score)) take(i, found);
      lines_[i] = {};
    }
  }

 private:
  TensorNumbers tensors_;
  std::vector<LineHistory<Row>> lines_;
};

}  // namespace trainmon
