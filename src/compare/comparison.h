// One pass over the steps of two runs, and of a repeat of the first one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compare/compare.h"
#include "compare/compare_tolerance.h"
#include "compare/compared_run.h"
#include "compare/gradient_scale.h"
#include "compare/step_pairs.h"
#include "compare/weight_steps.h"

namespace trainmon {

// What a pass must know beforehand and only whole runs tell. The first steps mostly tell the same;
// where they do not, the pass is made again.
struct WholeRuns {
  double roundoff = 0.0;          // the coarsest among activations and gradients of A
  bool has_other_shares = false;  // a batch that is split otherwise, as sizes prove
  bool is_by_rank = false;        // activations are compared as every rank saw them
  bool is_null_by_rank = false;
  std::set<std::uint32_t> biases;  // tensors of A that are smaller than others of their module
  FirstMoves first_moves;
  BackwardOrder backward;
  bool operator==(const WholeRuns&) const = default;
};

// The steps of one run, one at a time.
class SideSteps {
 public:
  explicit SideSteps(ComparedRun& run) : run_(&run) {}

  void begin();
  void advance();
  bool is_at_end() const { return is_at_end_; }
  std::int64_t step() const { return now_.step; }
  // Of the step, with activations in one of their forms.
  const std::vector<ComparedRow>& rows(bool by_rank);
  // Counts the rows of a step that is compared.
  void describe(const std::vector<ComparedRow>& rows);
  bool has_begun() const { return first_step_ >= 0 || rows_ > 0; }
  // What the rows tell of the run.
  void fill(ComparedSide& side) const;

 private:
  ComparedRun* run_;
  StepRows now_;
  std::vector<ComparedRow> forms_[2];
  bool has_forms_[2] = {false, false};
  bool is_at_end_ = false;
  std::int64_t rows_ = 0, first_step_ = -1, last_step_ = -1;
  std::set<std::int32_t> ranks_;
};

class Comparison {
 public:
  // Runs must outlive it; `null` may be nullptr.
  Comparison(const CompareOptions& options, ComparedRun& a, ComparedRun& b, ComparedRun* null,
             const WholeRuns& known);

  // Compares so many steps of A at most.
  void run(std::int64_t steps);
  // Of the steps compared.
  WholeRuns whole_runs() const;
  // Once all were compared. All but declared values and what lies beside rows.
  CompareReport report();
  std::int64_t pairs() const { return pair_count_; }
  std::int64_t null_pairs() const { return null_pair_count_; }

 private:
  // What is asked of a tensor of A for each of its pairs.
  struct Use {
    int kind = 0;  // place in kinds_
    int scale = -1;
    std::uint32_t module = 0;
    std::uint32_t parameter = 0;
    bool is_weight = false, is_activation = false, is_of_module = false, is_of_share = false;
    bool is_gradient = false, is_unreduced = false, is_nameless = false, is_bias = false;
  };
  // A pair and where it is furthest apart.
  struct Found {
    std::int64_t step = 0;
    std::uint32_t tensor = 0;
    std::int32_t attempt = 0, micro_step = 0, call = 0, rank = 0;
    std::size_t stat = 0;
    bool is_infinite = false;  // nothing tolerates it
    double a = 0.0, b = 0.0, difference = 0.0, tolerance = 0.0, ratio = 0.0;
  };
  struct Level {
    std::int64_t step = 0;
    double ratio = 0.0;
    std::uint32_t tensor = 0;
  };
  // Of the pair that is looked at.
  struct Look {
    const RowPair& pair;
    const ComparedRow& a;
    const ComparedRow& b;
    const Use& use;
    double moved = 0.0;
    double weights_apart = 0.0;
  };
  using Rows = std::vector<ComparedRow>;

  void add_tensors();
  void compare_null(std::int64_t step, const Rows& a, const Rows& null, bool a_within,
                    bool null_within);
  void compare(std::int64_t step, const Rows& a, const Rows& b);
  void note_backward(const Rows& a);
  void note_whole_runs(const Look& look);
  void look_at(std::size_t number, Look& look, const WeightStep& weight);
  bool is_split_otherwise(const Look& look);
  bool has_other_form(const Look& look);
  double weights_apart(const Look& look);
  double tolerance(const Look& look, Spread spread) const;
  std::optional<Found> not_finite(const Look& look) const;
  Found furthest(const Look& look, const std::array<double, kValueStats>& differences) const;
  Found found(const Look& look, std::size_t stat) const;
  void take(const Look& look, const Found& found);
  Difference difference(const Found& found) const;
  void fill_worst(CompareReport& report) const;
  void fill_levels(CompareReport& report) const;
  void fill_lacks(ComparedSide& side, const PairedSide& paired, const TensorTable& others) const;

  const CompareOptions& options_;
  ComparedRun& a_;
  ComparedRun& b_;
  ComparedRun* null_;
  const WholeRuns known_;
  SideSteps steps_a_, steps_b_;
  std::optional<SideSteps> steps_null_;
  StepPairs paired_;
  std::optional<StepPairs> null_paired_;
  std::int64_t version_ = 0, null_version_ = 0;      // of their pairs
  std::vector<std::size_t> weights_, null_weights_;  // places of pairs; no weight: kNoWeight
  WeightSteps weight_steps_, null_weight_steps_;
  GradientScales scales_;
  NoiseLevels noise_;

  std::vector<Use> uses_;  // of tensors of A
  std::vector<int> scale_kinds_;
  std::vector<std::uint32_t> modules_;
  std::map<std::string, int> kinds_;
  std::map<std::string, std::uint32_t> module_numbers_, parameter_numbers_;

  std::int64_t step_ = 0, first_step_ = 0;
  double drift_ = 1.0;
  std::int64_t pair_count_ = 0, null_pair_count_ = 0;
  // Of the step: what an activation was computed with, by values that are equal.
  std::map<std::tuple<std::int32_t, std::int32_t, double, double, double>, double> outputs_;
  std::int64_t outputs_step_ = 0;
  std::vector<char> noisy_;               // parameters whose gradient was rounding and nothing else
  std::vector<double> owned_;             // module -> how far its weights are apart, at most so far
  std::map<std::uint32_t, Found> worst_;  // by tensor of A
  std::vector<std::vector<Level>> levels_;    // by kind
  std::vector<char> said_size_, said_dtype_;  // of tensors of A
  bool has_said_split_ = false;
  // Pairs none of whose statistics is a number in both runs.
  std::int64_t without_value_ = 0;
  std::pair<std::int64_t, std::uint32_t> first_without_value_{};  // step, tensor of A
  CompareReport report_;

  // For whole_runs().
  bool has_other_shares_ = false;
  std::vector<double> last_size_;                     // of a weight, by tensor of A; -1: none
  std::vector<double> largest_weight_;                // by module
  std::map<std::uint32_t, std::uint64_t> first_seq_;  // of unreduced gradients, by tensor of A
};

}  // namespace trainmon
