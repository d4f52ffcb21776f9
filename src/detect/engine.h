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

  // Of the steps from the next one on; what is no number is NaN.
  void declare(std::int32_t optimizer, std::int32_t group, const std::string& name, double value) {
    declared_[optimizer][group][name] = value;
  }
  // Checks one step, which comes after all before. `has_edit`: somebody said that weights were
  // edited before it.
  void take(StepEvidence&& evidence, bool has_edit);

  const Findings& findings() const { return findings_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  const std::vector<Tensor> tensors_;
  const std::vector<std::int32_t> ranks_;
  std::map<std::int32_t, GroupValues> declared_;
  std::optional<StepEvidence> before_;
  ZeroGradients zero_;
  DeclaredJumps jumps_;
  Findings findings_;
};

}  // namespace trainmon::detect
