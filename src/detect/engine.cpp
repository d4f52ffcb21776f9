// A step is held against the one before it only where nothing lies between them.
#include "detect/engine.h"

namespace trainmon::detect {

void Engine::take(StepEvidence&& evidence) {
  evidence.sort();
  const bool follows =
      before_ && before_->restart == evidence.restart && before_->step + 1 == evidence.step;
  const Window window{evidence, follows ? &*before_ : nullptr, tensors_,
                      ranks_,   declared_[evidence.restart],   edits_[evidence.restart],
                      held_};
  jumps_.check(window, findings_);
  check_gap(window, findings_);
  check_reduce(window, findings_);
  check_exp_avg(window, findings_);
  check_exp_avg_sq(window, findings_);
  check_update(window, findings_);
  check_replicas(window, findings_);
  zero_.check(window, findings_);
  findings_.join_ranks(evidence.restart, evidence.step);
  before_ = std::move(evidence);
}

}  // namespace trainmon::detect
