// The checks over a whole run, step after step, in ascending order.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "detect/checks.h"
#include "detect/evidence.h"
#include "detect/findings.h"

namespace trainmon::detect {

// Keeps the evidence of one step. One thread.
class Engine {
 public:
  // `ranks`: those that should be there, ascending.
  Engine(std::vector<Tensor> tensors, std::vector<std::int32_t> ranks)
      : tensors_(std::move(tensors)), ranks_(std::move(ranks)) {}

  // Of the steps of a restart from the next one on; what is no number is NaN.
  void declare(std::int32_t restart, std::int32_t rank, std::int32_t optimizer, std::int32_t group,
               const std::string& name, double value) {
    declared_[restart][rank][optimizer][group][name] = value;
  }
  // Somebody said that weights are edited, before the row with this seq.
  void announce_edit(std::int32_t restart, std::int32_t rank, std::uint64_t seq) {
    edits_[restart][rank].push_back(seq);
  }
  // Checks one step, which comes after all before.
  void take(StepEvidence&& evidence);

  const Findings& findings() const { return findings_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  const std::vector<Tensor> tensors_;
  const std::vector<std::int32_t> ranks_;
  std::map<std::int32_t, DeclaredOfRanks> declared_;  // by restart, as edits_
  std::map<std::int32_t, Edits> edits_;
  Held held_;
  std::optional<StepEvidence> before_;
  ZeroGradients zero_;
  DeclaredJumps jumps_;
  Findings findings_;
};

}  // namespace trainmon::detect
