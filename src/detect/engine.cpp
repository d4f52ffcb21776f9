// A step is held against the one before it only where nothing lies between them.
#include "detect/engine.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace trainmon::detect {

void Engine::tell_other_optimizer(std::int32_t restart, std::int32_t rank, double value) {
  const auto optimizer = static_cast<std::int32_t>(value < 0.0 ? -1.0 - value : value);
  declared_[restart][rank].erase(optimizer);
  others_.erase({rank, optimizer});
  if (value < 0.0) return know_formula(rank, optimizer);
  others_.insert({rank, optimizer});
  formulas_[rank].erase(optimizer);
}

void Engine::tell_ranks(std::int32_t restart, const std::set<std::int32_t>& ranks) {
  std::vector<std::int32_t>& own = ranks_of_[restart];
  own.clear();
  std::ranges::set_intersection(ranks_, ranks, std::back_inserter(own));
}

void Engine::take(StepEvidence&& evidence) {
  evidence.sort();
  evidence.note_unread(unread_[evidence.restart]);
  if (evidence.restart != restart_) forget_start(evidence);
  restart_ = evidence.restart;
  const bool follows =
      before_ && before_->restart == evidence.restart && before_->step + 1 == evidence.step;
  const auto told = ranks_of_.find(evidence.restart);
  const Window window{evidence,
                      follows ? &*before_ : nullptr,
                      tensors_,
                      told == ranks_of_.end() ? ranks_ : told->second,
                      declared_[evidence.restart],
                      edits_[evidence.restart],
                      lossy_[evidence.restart],
                      held_,
                      norms_[evidence.restart],
                      formulas_,
                      moves_,
                      evaluated_[evidence.restart],
                      uncleared_[evidence.restart]};
  if (!has_begun_) check_start(window, findings_);
  has_begun_ = true;
  start_steps_.check(window, findings_);
  resumed_weights_.check(window, findings_);
  inputs_.check(window, findings_);
  input_limits_.check(window, findings_);
  input_ranges_.check(window, findings_);
  repeated_arguments_.check(window, findings_);
  shared_arguments_.check(window, findings_);
  forwards_.check(window, findings_);
  recomputed_.check(window, findings_);
  canaries_.check(window, findings_);
  jumps_.check(window, findings_);
  learning_rates_.check(window, findings_);
  rate_slopes_.check(window, findings_);
  rate_factors_.check(window, findings_);
  check_present(window, findings_);
  ended_gradients_.check(window);
  gaps_.check(window, findings_);
  own_changes_.check(window, findings_);
  backwards_.check(window, findings_);
  stale_gradients_.check(window, findings_);
  gradient_ranges_.check(window, findings_);
  const bool are_parted = uneven_.contains(restart_) || parted_.check(window, findings_);
  if (!are_parted) reductions_.check(window, findings_);
  check_exp_avg(window, findings_);
  check_exp_avg_sq(window, findings_);
  resumed_moments_.check(window, findings_);
  edited_moments_.check(window, findings_);
  updates_.check(window, findings_);
  step_sizes_.check(window, findings_);
  unmoved_.check(window, findings_);
  untrained_.check(window, findings_);
  if (looks_by_hand_) by_hand_.check(window, findings_);
  if (!are_parted) replicas_.check(window, findings_);
  buffers_.check(window, findings_);
  zero_.check(window, findings_);
  gradient_norms_.check(window, findings_);
  norms_.clear();
  evaluated_.clear();
  uncleared_.clear();
  unread_.clear();
  findings_.join_ranks();
  moves_.note(evidence);
  resumed_weights_.note(evidence);
  evidence.forget_earlier();
  before_ = std::move(evidence);
  forget_edits(*before_);
}

Findings Engine::findings_at_end() const {
  Findings all = findings_;
  ended_gradients_.end(tensors_, all);
  backwards_.end(all);
  zero_.end(all);
  all.join_ranks();
  return all;
}

// Somebody may have started again with another loop: what held says nothing of it.
void Engine::forget_start(const StepEvidence& first) {
  rate_factors_.forget();
  resumed_weights_.forget();
  resumed_moments_.forget();
  if (before_ && before_->restart < first.restart) {
    learning_rates_.begin(declared_[restart_], before_->step);
    rate_slopes_.begin();
    own_changes_.begin();
    buffers_.begin();
  } else {
    learning_rates_.forget();
    rate_slopes_.forget();
    own_changes_ = {};
    buffers_ = {};
  }
  if (before_ && before_->restart < first.restart && before_->step + 1 == first.step) {
    resumed_weights_.begin(*before_, held_, gaps_);
    resumed_moments_.begin(*std::exchange(before_, std::nullopt), declared_[restart_],
                           std::move(held_));
  }
  held_ = {};
  moves_ = {};
  gaps_.begin();
  parted_ = {};
  reductions_ = {};
  unmoved_ = {};
  untrained_ = {};
  by_hand_ = {};
  replicas_ = {};
  edited_moments_ = {};
  backwards_ = {};
  stale_gradients_ = {};
  gradient_ranges_ = {};
  forwards_ = {};
  recomputed_ = {};
  canaries_ = {};
  step_sizes_ = {};
}

// Those before the first row of a step lie between no two rows that are still to be compared.
void Engine::forget_edits(const StepEvidence& before) {
  Edits& edits = edits_[before.restart];
  if (edits.empty()) return;
  std::map<std::int32_t, std::uint64_t> first;  // by rank
  const auto note = [&](const auto& one) {
    const auto at = first.try_emplace(one.rank, one.seq).first;
    at->second = std::min(at->second, one.seq);
  };
  std::ranges::for_each(before.all(), note);
  std::ranges::for_each(before.inputs(), note);
  for (auto& [rank, seqs] : edits) {
    const auto known = first.find(rank);
    if (known != first.end()) seqs.erase(seqs.begin(), seqs.lower_bound(known->second));
  }
}

}  // namespace trainmon::detect
