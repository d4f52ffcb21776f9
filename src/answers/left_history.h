// Which values left their own histories where no check found anything certain, by one rule for
// `diagnose` and the page of `report`. It is no verdict. docs/detection.md defines it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "answers/left_lines.h"
#include "read/open_logs.h"
#include "read/run_stream.h"
#include "trainmon/read.h"

namespace trainmon {

struct Diagnosis;

// A logged loss that left its history. Of the rank on which it went furthest.
struct LeftLoss {
  std::string name;
  double value = 0.0;
  double usual = 0.0;           // the median before
  std::vector<int> ranks = {};  // on which it left, ascending
};

// The element of what is not one tensor: the norm of all gradients of a kind.
inline constexpr std::string_view kAllTensors = "all tensors";

// So many lines of a step are named: the first one, and those behind it.
inline constexpr std::size_t kNamedLines = 4;

// What of its rank did not leave in a step, though it is recorded and comes before what did.
enum class Unmoved {
  unknown,
  ranks,     // other ranks, which hold the same weights, show less or nothing of it
  forward,   // inputs and activations, but a loss or gradients with which a backward begins did
  backward,  // gradients of activations neither, but several gradients of weights did
};

// Lines that left their histories in one step of a start. Of the rank with the line that went
// furthest the first is named.
struct LeftStep {
  RowPlace row;        // without its shape
  Series series;       // its element may be kAllTensors
  double norm = 0.0;   // of a logged loss (kLogged) its value
  double usual = 0.0;  // the median before it
  double score = 0.0;  // finite
  double apart = 0.0;  // by this factor it stays away; 0: it is far behind
  Measure measure = Measure::norm;
  bool is_spread = false;  // of numbers that are the standard deviations of the measure
  int beside = -1;         // numbers are relative to this rank: factors or differences; -1: to none
  std::optional<Series> over = {};  // numbers are over those of this line; all tensors: their mean
  bool is_difference = false;       // `apart` is none: of a mean, a share, a loss below 0
  Unmoved before = Unmoved::unknown;
  int again = 0;            // so many of the next LeftLines::kAgain - 1 rows are as far behind
  int means = 0;            // so many values have another mean than those before; 0: it does not
  bool begins = false;      // its start begins with this step
  std::size_t lines = 1;    // on any rank
  std::string module = {};  // which all of several are in, as "blocks.*.mlp"; empty: none
  std::vector<int> ranks = {};        // on which as many lines left, or half as many; ascending
  std::optional<LeftLoss> loss = {};  // that left, too, where the row is another one
  // Of its rank, up to kNamedLines - 1: what left behind it in the order of a step. No losses.
  std::vector<Series> next = {};
};

struct LeftHistory : LeftStep {
  std::vector<LeftStep> others = {};  // steps in which lines did so, too, ascending
  // Where `before` is Unmoved::forward: inputs and activations that changed by less, all the same.
  std::vector<Series> less_clear = {};
};

// The steps in which lines left their histories, over ranks. A finding of a step, or of the 16
// steps before, may be why. Where one names its tensor, or none in particular, the line is left
// out. That inputs are unusual hides nothing.
class LeftSteps {
 public:
  // `facts` and `diagnosis` outlive it. Takes the losses that log() was given.
  LeftSteps(const RunRows& facts, const Diagnosis& diagnosis);

  // After end_rank(). Nothing where the diagnosis has a verdict.
  void take(const LeftLines& rank);
  // The step in which most tensors left, with some others. One shortly before it in which many did
  // comes first, and so does one in which a loss shifted. The norm of all gradients tells where
  // nothing else does.
  std::optional<LeftHistory> found() const;

 private:
  struct Line {
    LeftLines::Left left;
    const Series* series = nullptr;
  };
  // Of a tensor: the ranks with a line that left, and the one that went furthest.
  struct Furthest {
    std::vector<int> ranks = {};  // as they came
    int rank = 0;
    double far = 0.0;
  };
  struct Step {
    std::size_t lines = 0;
    std::map<std::uint32_t, Furthest> tensors;  // by series, or by a number of a logged loss
    std::map<int, std::vector<Line>> first;     // of each rank, some, in the order of a step
    std::map<int, std::size_t> own;        // how many lines of each rank are of values of its own
    std::map<std::uint32_t, Line> losses;  // that went furthest, by number
    bool has_shift = false;                // of a loss
    std::size_t of_start = 0;  // lines of activations of which alone the mean differs, at a start
    std::vector<std::string> module = {};  // how far their names go together
  };
  void keep_first(const Line& line, std::vector<Line>& first) const;
  static std::vector<int> ranks_of(const Step& step);
  static int rank_of(const Step& step, const std::vector<int>& ranks);
  static bool may_be_chance(const Step& step);
  LeftStep whole(const Step& step) const;
  using Steps = std::map<std::pair<std::int32_t, std::int64_t>, Step>;  // by restart, step
  void take(const LeftLines::Left& left, std::uint32_t number, const Series& series, Steps& steps);
  void take_losses();
  bool has_rows_of(std::string_view kind) const;
  bool is_shared(const LeftStep& one) const;
  bool is_of_last_module(const Series& series) const;
  Unmoved unmoved_before(const Step& step, const Line& first) const;
  bool has_reason(std::int64_t step, const Series& series) const;

  Steps steps_;
  Steps norm_steps_;  // in which the norm of all gradients shifted
  std::deque<Series> losses_;
  std::map<std::pair<std::string, std::int32_t>, Series> norms_;  // by kind, optimizer
  std::vector<std::string> last_modules_;  // with whose output gradients a backward begins
  std::string behind_last_;                // the module whose output gradient comes next
  const RunRows& facts_;
  const Diagnosis& diagnosis_;
};

// What the rows of a piece add to the histories of their lines.
std::vector<LineValue> line_values(const RunStream& stream, const RunStream::Piece& piece);

// Of the newest start of each step, of the rows that `options` choose; nullopt where `diagnosis`
// has a verdict. Reads the run once, as most_unusual() does, and keeps the histories of one rank.
std::optional<LeftHistory> left_history(const OpenedRun& run, ReadOptions options,
                                        const Diagnosis& diagnosis);

// Adds a step, but where `is_told` holds of one that is there.
void add_unless(const std::function<bool(const LeftStep&)>& is_told, LeftStep step,
                std::optional<LeftHistory>& to);
// Adds what means of many rows tell where no history does. Activations may have changed by less,
// data may be others on average, and ranks may part.
void add_means(std::optional<LeftHistory>& found, const OpenedRun& run, const ReadOptions& options,
               const Diagnosis& diagnosis);

// "norm", "mean", "zeros"; "entropy" of ids, "value" of a logged loss. "norm_spread" and so on.
std::string measure_of(const LeftStep& left);
// "step 30, rank 1, input (root) input.0", "step 30, ranks 0-1, grad_reduced all tensors"
std::string place_text(const Diagnosis& diagnosis, const LeftStep& left);
// "its norm is 2.8e+03, the median before is 11; 240 robust standard deviations off", or that it
// stays away. It also says whether it is one of several, and which other steps there are.
std::string size_text(const Diagnosis& diagnosis, const LeftHistory& left);
// The command that shows the line at this row and in the steps before.
std::string next_command(const LeftHistory& left, const std::filesystem::path& run);

}  // namespace trainmon
