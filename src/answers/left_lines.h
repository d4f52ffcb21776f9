// Which lines of a rank left their own histories. docs/detection.md defines it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "answers/constants.h"
#include "answers/history.h"
#include "answers/line_changes.h"
#include "answers/line_shift.h"
#include "answers/line_value.h"
#include "answers/shift.h"
#include "answers/spread.h"
#include "trainmon/read.h"

namespace trainmon {

// By which the first rows of a start are others than the 16 before it.
struct FirstOfStart {
  int rows;        // of the start, at most LeftLines::kStays
  double errors;   // standard errors between the means, at least
  double factor;   // between them, at least
  bool was_level;  // the rows before do not drift
};

// The histories of the norm of one rank's lines, and which lines left their own. They are far
// behind it, or they stay away. A copy goes on by itself. One thread.
class LeftLines {
 public:
  // For good: so many steps in a row are all larger than each of the 16 before, or all smaller.
  // docs/detection.md has the rules and the factors that were seen.
  static constexpr int kStays = ShiftSearch::kAfter;
  // Rows in which an activation that is far behind now and then is so again.
  static constexpr int kAgain = 24;

  explicit LeftLines(const std::vector<Series>& series);

  const TensorNumbers& tensors() const { return histories_.tensors(); }
  // In the order of the log.
  void add(const LineValue& value);
  // As RankHistories::end_rank(); what left stays until forget().
  template <typename Take>
  void end_rank(const Take& take) {
    for (Gradients& one : gradients_) one.close();
    histories_.end_rank(
        take, [this](std::uint32_t tensor, const ClosedRow<RowPlace>& one) { note(tensor, one); });
  }
  struct Left {
    Unusual<RowPlace> row;
    std::uint32_t series = 0;
    double apart = 0.0;   // the factor by which it stays away; 0: it is far behind
    int means = 0;        // so many values have another mean than those before; 0: it is far
    int again = 0;        // so many of the next rows are as far behind, on the same side
    bool begins = false;  // with it its line begins in another start
    Measure measure = Measure::norm;
    bool is_spread = false;  // not the measure itself, but its standard deviation
    // Where this is above 0, `apart` is a difference, in such units: means and shares have 1, a
    // loss below 0 has its usual size.
    double unit = 0.0;
  };
  // By tensor, the first row of each.
  const std::map<std::uint32_t, Left>& left() const { return left_; }
  // Shifts of the norm of all gradients of one kind and optimizer, each with a series of those.
  std::vector<std::pair<Shift, std::uint32_t>> shifts() const;
  std::vector<LineShift> shifts_of_lines() const;
  // Another rank begins.
  void forget();

 private:
  // Of the last rows.
  struct Recent {
    static constexpr std::size_t kRows = History::kMost + kStays;
    struct Place {
      std::int64_t step;
      std::uint64_t seq;
      std::int32_t restart, accum;
      float score, usual;
    };
    std::array<float, kRows> logs;         // log10 of their sizes
    std::array<Place, kStays + 1> places;  // of the last kStays, and of the one before
    std::size_t count = 0;

    void add(const ClosedRow<RowPlace>& row);
    struct Gap {
      float size = 0.0F;   // between the last kStays rows and those before, in log10; 0: none
      float width = 0.0F;  // the range of those before
    };
    Gap gap() const;
    // Of the first rows of a start: how far their mean is from that of the rows before, in log10. 0
    // where that may be chance, and for other rows.
    float gap_of_means(const FirstOfStart& rule) const;
  };
  // Rows of an activation that are far behind, after many that were not.
  struct Excursions {
    std::size_t quiet = 0;     // rows in a row before
    std::size_t since = 0;     // rows from the first of those that count
    bool is_above = false;     // it is
    std::optional<Left> left;  // it, with how many came since
  };
  // What is known of a line until the row that comes next.
  struct Line {
    std::uint32_t series = 0;
    std::int64_t elements = -1;
    std::int64_t step = 0;
    double norm = 0.0;
    Stride stride = {};
    std::size_t steps = 0;     // with so many elements, that many steps of its history
    std::size_t rows = 0;      // that are closed
    bool has_changed = false;  // the number of its elements, or rows lack
    Recent recent = {};
    Excursions excursions = {};
  };
  // What the kind of a tensor says.
  struct Of {
    bool is_state = false;  // which follows its gradient late
    bool is_own_state = false;
    // A small gap is no chance where it is wider than the range before. Weights and their steps
    // follow the learning rate.
    bool is_even = false;
    bool is_loss = false;
    bool is_input = false;
    bool is_activation = false;  // or its gradient
    // Clipping may hold it at one norm, and let go of it in a step.
    bool may_be_clipped = false;
    std::uint32_t gradients = 0;  // the place in gradients_, and 1; 0: it is none
    std::uint32_t shifting = 0;   // likewise the first place in shifting_
    std::uint32_t swinging = 0;   // likewise in swinging_
  };
  // All gradients of a step, of one kind and optimizer.
  struct Gradients {
    RowPlace last = {};
    double sum_sq = 0.0;
    std::size_t rows = 0;
    std::size_t rows_before = 0;  // of the step before
    std::uint32_t series = 0;
    ShiftSearch search{kOfGradients};
    void close();
  };
  // A number of a line that may shift where nothing else tells. They are both of an input and of
  // ids, the zeros of an activation and of its gradient. And whether that gradient adds up to 0.
  struct Shifting {
    std::uint32_t series = 0;
    Measure measure = Measure::norm;
    bool is_forward = false;  // an activation, not its gradient; of its norm, of ids
    bool is_zero = true;      // so far, of zeros or a balance
    std::size_t rows = 0;     // in which it was
    RowPlace last = {};       // of them
    std::int64_t elements = -1;
    ShiftSearch search{rule()};
    // Of the zeros of an activation, and of ids.
    FrozenSearch frozen = {};
    NewZeros new_zeros = {};
    MissingLargest missing = {};

    const ShiftRule& rule() const;
    void add(const LineValue& value);
    // Counts a number that is 0 as all so far, which takes no time; false for another one.
    bool pass_over(const LineValue& value);
  };
  // How far a number of an input swings.
  struct Swinging {
    std::uint32_t series = 0;
    Measure measure = Measure::norm;  // its logarithm; or the mean
    std::int64_t elements = -1;
    SpreadSearch search = {};

    void add(const LineValue& value);
  };
  void note(std::uint32_t tensor, const ClosedRow<RowPlace>& one);
  void note_gap(std::uint32_t tensor);
  void note_excursions(std::uint32_t tensor, const ClosedRow<RowPlace>& one);

  RankHistories<RowPlace> histories_;
  std::vector<Line> lines_;  // by tensor, as of_
  std::vector<Of> of_;
  std::vector<Gradients> gradients_;
  std::vector<Shifting> shifting_;
  std::vector<Swinging> swinging_;
  LineChanges changes_;
  std::map<std::uint32_t, Left> left_;
  std::int32_t rank_ = 0;
};

}  // namespace trainmon
