// The checks over a whole run, step after step, in ascending order.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "detect/backward_counts.h"
#include "detect/buffers.h"
#include "detect/by_hand.h"
#include "detect/canaries.h"
#include "detect/checks.h"
#include "detect/edited_moments.h"
#include "detect/ended_gradients.h"
#include "detect/evidence.h"
#include "detect/findings.h"
#include "detect/forward_counts.h"
#include "detect/gap.h"
#include "detect/gradient_ranges.h"
#include "detect/input.h"
#include "detect/input_limits.h"
#include "detect/input_ranges.h"
#include "detect/learning_rates.h"
#include "detect/own_changes.h"
#include "detect/rate_factors.h"
#include "detect/rate_slopes.h"
#include "detect/recomputed.h"
#include "detect/reduce.h"
#include "detect/repeated_arguments.h"
#include "detect/resumed_moments.h"
#include "detect/resumed_weights.h"
#include "detect/shared_arguments.h"
#include "detect/stale_gradients.h"
#include "detect/start_steps.h"
#include "detect/step_sizes.h"
#include "detect/unmoved.h"
#include "detect/untrained.h"
#include "detect/window.h"

namespace trainmon::detect {

// Keeps the evidence of one step. One thread.
class Engine {
 public:
  // `tensors` must outlive it, and may grow; `ranks`: those that should be there in some start,
  // ascending.
  Engine(const std::vector<Tensor>& tensors, std::vector<std::int32_t> ranks)
      : tensors_(tensors), ranks_(std::move(ranks)) {}

  // Those of one restart; without a word it is all.
  void tell_ranks(std::int32_t restart, const std::set<std::int32_t>& ranks);
  // Of the steps of a restart from the next one on; what is no number is NaN.
  void declare(std::int32_t restart, std::int32_t rank, std::int32_t optimizer, std::int32_t group,
               const std::string& name, double value) {
    declared_[restart][rank][optimizer][group][name] = value;
  }
  // Somebody said that weights are edited, before the row with this seq.
  void announce_edit(std::int32_t restart, std::int32_t rank, std::uint64_t seq) {
    edits_[restart][rank].insert(seq);
  }
  // What log() was given in the next step as the norm of all gradients.
  void log_norm(std::int32_t restart, std::int32_t rank, LoggedNorm norm) {
    norms_[restart][rank] = std::move(norm);
  }
  // Before the next step this chunk was called in evaluation mode, with gradients.
  void tell_evaluation(std::int32_t restart, std::int32_t rank, std::int32_t chunk) {
    evaluated_[restart].insert({rank, chunk});
  }
  // In the next step this chunk is given more than tensors that have rows. They may be the same in
  // two calls, and the batch another one.
  void tell_unread(std::int32_t restart, std::int32_t rank, std::int32_t chunk) {
    unread_[restart].insert({rank, chunk});
  }
  // The next step of this optimizer adds to gradients of the one before, which nobody cleared.
  void tell_uncleared(std::int32_t restart, std::int32_t rank, std::int32_t optimizer) {
    uncleared_[restart].insert({rank, optimizer});
  }
  // From the next step on ranks may have other numbers of batches. Steps of one number are other
  // ones then, and are not compared.
  void tell_uneven(std::int32_t restart) { uneven_.insert(restart); }
  // The steps of this optimizer are those of a formula that checks know.
  void know_formula(std::int32_t rank, std::int32_t optimizer) {
    if (!others_.contains({rank, optimizer})) formulas_[rank].insert(optimizer);
  }
  // From the next step on one of another class steps in its place. `value`: as that of the scalar
  // kOtherOptimizerScalar.
  void tell_other_optimizer(std::int32_t restart, std::int32_t rank, double value);
  // Rows of this rank were lost, it is not known of which steps.
  void announce_loss(std::int32_t restart, std::int32_t rank) { lossy_[restart].insert(rank); }
  // Something is around the models that says why reductions cannot be checked, as a communication
  // hook. What is equal on ranks then is no work of their loop.
  void leave_out_by_hand() { looks_by_hand_ = false; }
  // Ranks began a start at different steps; as of StartSteps.
  void tell_start(std::int32_t restart, const std::map<std::int32_t, std::int64_t>& steps,
                  bool are_aligned) {
    start_steps_.tell(restart, steps, are_aligned);
  }
  // Checks one step, which comes after all before.
  void take(StepEvidence&& evidence);

  // What ranks have of a step that no optimizer has taken, as the record ends.
  void note_open(const StepEvidence& evidence) {
    if (evidence.restart == restart_) backwards_.note_open(evidence);
  }

  // The next step is not held against the one before: something between them may be lost.
  void forget_step() { before_.reset(); }

  // With what the end of the record tells. More steps may follow.
  Findings findings_at_end() const;
  const Findings& findings() const { return findings_; }
  // What was found since the last call; findings() has nothing of it any more.
  std::vector<Finding> take_findings() { return findings_.take(); }

 private:
  void forget_edits(const StepEvidence& before);
  void forget_start(const StepEvidence& first);

  const std::vector<Tensor>& tensors_;
  const std::vector<std::int32_t> ranks_;
  std::map<std::int32_t, std::vector<std::int32_t>> ranks_of_;  // by restart, where they are told
  std::map<std::int32_t, DeclaredOfRanks> declared_;            // by restart, as edits_
  std::map<std::int32_t, Edits> edits_;
  std::map<std::int32_t, std::set<std::int32_t>> lossy_;
  std::map<std::int32_t, LoggedNorms> norms_;
  std::map<std::int32_t, std::set<std::pair<std::int32_t, std::int32_t>>> evaluated_;
  std::map<std::int32_t, std::set<std::pair<std::int32_t, std::int32_t>>> uncleared_;
  std::map<std::int32_t, std::set<std::pair<std::int32_t, std::int32_t>>> unread_;
  std::set<std::int32_t> uneven_;  // restarts
  KnownFormulas formulas_;
  std::set<std::pair<std::int32_t, std::int32_t>> others_;  // rank, optimizer: of another class now
  Held held_;
  Moves moves_;
  StartSteps start_steps_;
  ResumedWeights resumed_weights_;
  ResumedMoments resumed_moments_;
  Gaps gaps_;
  Parted parted_;
  bool has_begun_ = false;
  std::int32_t restart_ = 0;
  std::optional<StepEvidence> before_;
  Reductions reductions_;
  EditedMoments edited_moments_;
  EndedGradients ended_gradients_;
  ZeroGradients zero_;
  DeclaredJumps jumps_;
  LearningRates learning_rates_;
  RateSlopes rate_slopes_;
  RateFactors rate_factors_;
  BackwardCounts backwards_;
  StaleGradients stale_gradients_;
  OwnChanges own_changes_;
  StepSizes step_sizes_;
  Updates updates_;
  UnmovedWeights unmoved_;
  Untrained untrained_;
  ReducedByHand by_hand_;
  Replicas replicas_;
  bool looks_by_hand_ = true;
  Buffers buffers_;
  GradientNorms gradient_norms_;
  GradientRanges gradient_ranges_;
  Inputs inputs_;
  InputLimits input_limits_;
  InputRanges input_ranges_;
  RepeatedArguments repeated_arguments_;
  SharedArguments shared_arguments_;
  ForwardCounts forwards_;
  Recomputed recomputed_;
  Canaries canaries_;
  Findings findings_;
};

}  // namespace trainmon::detect
