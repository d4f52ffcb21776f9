// Data that are others from one step on, over all ranks. docs/detection.md defines it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "answers/left_history.h"
#include "read/open_logs.h"
#include "trainmon/read.h"

namespace trainmon {

// The mean, over all ranks and calls, of a number in each step. Of more than kMostMeans steps
// neighbours are taken together. Rows come rank by rank.
class StepMeans {
 public:
  static constexpr std::size_t kMostMeans = 16'384;
  static constexpr std::size_t kSteps = 64;  // on either side, with a row

  // Steps before the first one that was added do not count.
  void add(const RowPlace& row, double number);

  // The step from which on the means of kSteps are another one.
  struct Change {
    RowPlace first = {};  // of the first rank that has it
    bool begins = false;  // a start begins with it
    double before = 0.0, after = 0.0;
    double errors = 0.0;     // standard errors between them
    std::int64_t steps = 0;  // that `after` is of, from the first to the last
  };
  // The first one.
  std::optional<Change> change() const;

  // The mean goes with that of so many steps before.
  struct Repeat {
    RowPlace first = {};  // that does
    std::int64_t steps = 0;
    double correlation = 0.0;
  };
  // The shortest one, of the first kMostPairs means. None where neighbours go together, as do those
  // of a few sources that take turns.
  static constexpr std::size_t kMostPairs = 4'096, kFewestPairs = 64, kShortest = 16;
  std::optional<Repeat> repeat() const;

 private:
  struct Mean {
    std::int32_t restart = 0;
    std::int32_t rank = 0;
    std::uint64_t seq = 0;
    std::int64_t rows = 0;
    double sum = 0.0;
    void add(const Mean& other);
  };
  // Of means with a row: their places, and the means.
  struct Numbers {
    std::vector<std::size_t> places;
    std::vector<double> numbers;
  };
  Numbers numbers() const;
  RowPlace place_of(std::size_t place) const;

  std::int64_t first_ = -1;  // step
  std::int64_t width_ = 1;   // steps of one mean
  std::vector<Mean> means_;
};

// What the model is given has another size on average: ids and floating-point inputs, or the
// entropy of ids. A source of data that has ended is told so. Or its sizes repeat, as where the
// random numbers of an augmentation begin anew in each epoch. Of each the clearest line is named.
// Empty where there is none, and where `diagnosis` has a verdict; a finding of `input` near that
// step is why. Reads the inputs of the run once. Throws as read_run().
std::vector<LeftStep> input_means(const OpenedRun& run, ReadOptions options,
                                  const Diagnosis& diagnosis);
// Adds them to what left its history, but where that is near that step.
void add_input_means(std::optional<LeftHistory>& found, const OpenedRun& run,
                     const ReadOptions& options, const Diagnosis& diagnosis);

}  // namespace trainmon
