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
  double norm = 0.0;
  double usual = 0.0;  // the median of the norms before it; above 0
  double score = 0.0;  // finite
};

// The histories of the norm of one rank's lines, and the first row of each that left its own far
// behind. A copy goes on by itself. One thread.
class LeftLines {
 public:
  explicit LeftLines(const std::vector<Series>& series);

  const TensorNumbers& tensors() const { return histories_.tensors(); }
  // A row in the order of the log: its value of history_value(), and how many elements it has.
  void add(const RowPlace& row, std::uint32_t series, double value, std::int64_t elements);
  // As RankHistories::end_rank(); left() stays until forget().
  template <typename Take>
  void end_rank(const Take& take) {
    histories_.end_rank(
        take, [this](std::uint32_t tensor, const Unusual<RowPlace>& one) { note(tensor, one); });
  }
  struct Left {
    Unusual<RowPlace> row;
    std::uint32_t series = 0;
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
  void note(std::uint32_t tensor, const Unusual<RowPlace>& one);

  RankHistories<RowPlace> histories_;
  std::vector<Line> lines_;  // by tensor
  std::map<std::uint32_t, Left> left_;
};

// The earliest such row over ranks, in the order of first-bad. A finding of its step, or of the 16
// steps before, may be why. Where one names its tensor, or none in particular, the line is left
// out.
class EarliestLeft {
 public:
  // `facts` and `diagnosis` outlive it.
  EarliestLeft(const RunRows& facts, const Diagnosis& diagnosis)
      : facts_(facts), diagnosis_(diagnosis) {}

  // After end_rank(). Nothing where the diagnosis has a verdict.
  void take(const LeftLines& rank);
  const std::optional<LeftHistory>& earliest() const { return earliest_; }

 private:
  bool has_reason(const LeftHistory& one) const;

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
// "its norm is 2.8e+03 after 11: 240 robust standard deviations off"
std::string size_text(const LeftHistory& left);
// The command that shows the line at this row and in the steps before.
std::string next_command(const LeftHistory& left, const std::filesystem::path& run);

}  // namespace trainmon
