// Which value left its own history far behind where no check found anything certain, by one rule
// for `diagnose` and the page of `report`. It is no verdict. docs/detection.md defines it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "answers/history.h"
#include "read/open_logs.h"
#include "trainmon/read.h"

namespace trainmon {

struct Diagnosis;

struct LeftHistory {
  RowPlace row;  // without its shape
  Series series;
  double norm = 0.0;        // of a logged loss (kLogged) its value
  double usual = 0.0;       // the median of the norms before it; above 0
  double score = 0.0;       // finite
  bool stays = false;       // it left its range for kStays steps, and may not be far behind
  std::size_t lines = 1;    // that left their histories in this step of this start, on any rank
  std::string module = {};  // which all of several are in, as "blocks.*.mlp"; empty: none
};

// The histories of the norm of one rank's lines, and the first row of each that left its own: far
// behind, or for good. A copy goes on by itself. One thread.
class LeftLines {
 public:
  // For good: so many steps in a row are all larger than each of the 16 before by this factor, or
  // all smaller. docs/detection.md has the factors that were seen.
  static constexpr int kStays = 8;
  static constexpr double kApart = 2.5;
  static constexpr double kLossApart = 1.5;  // a loss is even, and one that rises so is no noise

  explicit LeftLines(const std::vector<Series>& series, double apart = kApart);

  const TensorNumbers& tensors() const { return histories_.tensors(); }
  // A row in the order of the log: its value of history_value(), and how many elements it has.
  void add(const RowPlace& row, std::uint32_t series, double value, std::int64_t elements);
  // As RankHistories::end_rank(); left() stays until forget().
  template <typename Take>
  void end_rank(const Take& take) {
    histories_.end_rank(
        take, [this](std::uint32_t tensor, const ClosedRow<RowPlace>& one) { note(tensor, one); });
  }
  struct Left {
    Unusual<RowPlace> row;
    std::uint32_t series = 0;
    bool stays = false;
  };
  // By tensor.
  const std::map<std::uint32_t, Left>& left() const { return left_; }
  // Another rank begins.
  void forget();

 private:
  // What is known of a line until the row that comes next.
  struct Line {
    std::uint32_t series = 0;
    std::int64_t elements = -1;
    std::int64_t step = 0;
    std::size_t steps = 0;     // with so many elements, that many steps of its history
    bool has_changed = false;  // the number of its elements
  };
  // Steps in a row on one side of all that came before the first of them.
  struct Leaving {
    Left first;
    bool is_above = false;
    double bound = 0.0;  // log10 of a size
    int steps = 0;
  };
  void note(std::uint32_t tensor, const ClosedRow<RowPlace>& one);
  void note_stay(std::uint32_t tensor, const ClosedRow<RowPlace>& one);

  double apart_log_;
  RankHistories<RowPlace> histories_;
  std::vector<Line> lines_;     // by tensor
  std::vector<bool> is_state_;  // by tensor: of an optimizer, which follows its gradient late
  std::map<std::uint32_t, Leaving> leaving_;
  std::map<std::uint32_t, Left> left_;
};

// The earliest such row over ranks, in the order of first-bad. A finding of its step, or of the 16
// steps before, may be why. Where one names its tensor, or none in particular, the line is left
// out.
class EarliestLeft {
 public:
  // `facts` and `diagnosis` outlive it. Takes the losses that log() was given.
  EarliestLeft(const RunRows& facts, const Diagnosis& diagnosis);

  // After end_rank(). Nothing where the diagnosis has a verdict.
  void take(const LeftLines& rank);
  std::optional<LeftHistory> earliest() const;

 private:
  void take(const LeftLines::Left& left, const Series& series);
  void take_losses();
  bool has_reason(const LeftHistory& one) const;

  // Lines that left their histories in one step, and how far their names go together.
  struct Together {
    std::size_t lines = 0;
    std::vector<std::string> module = {};
  };
  using Step = std::pair<std::int32_t, std::int64_t>;  // of a start
  std::map<Step, Together> together_;
  const RunRows& facts_;
  const Diagnosis& diagnosis_;
  std::optional<LeftHistory> earliest_;
};

// Of the newest start of each step, of the rows that `options` choose; nullopt where `diagnosis`
// has a verdict. Reads the run once, as most_unusual() does, and keeps the histories of one rank.
std::optional<LeftHistory> left_history(const OpenedRun& run, ReadOptions options,
                                        const Diagnosis& diagnosis);

// "step 30, rank 1, input (root) input.0"
std::string place_text(const Diagnosis& diagnosis, const LeftHistory& left);
// "its norm is 2.8e+03 after 11: 240 robust standard deviations off", or that it stays away. It
// also says whether it is one of several.
std::string size_text(const LeftHistory& left);
// The command that shows the line at this row and in the steps before.
std::string next_command(const LeftHistory& left, const std::filesystem::path& run);

}  // namespace trainmon
