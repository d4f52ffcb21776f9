// One function per check, each over one step and the one before it. A check says nothing where the
// rows that it needs are not there; docs/detection.md says what each proves.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "detect/evidence.h"
#include "detect/findings.h"

namespace trainmon::detect {

// What a group of an optimizer says: name -> value, NaN for what is no number.
using DeclaredGroup = std::map<std::string, double>;
// Of one optimizer, by group.
using GroupValues = std::map<std::int32_t, DeclaredGroup>;
// nullopt where the group does not say, or no number.
std::optional<double> value_of(const DeclaredGroup& group, const char* name);
// Says so, and not 0.
bool is_set(const DeclaredGroup& group, const char* name);

struct Window {
  const StepEvidence& now;
  const StepEvidence* before = nullptr;  // of the step before, of the same restart; or nullptr
  const std::vector<Tensor>& tensors;
  const std::vector<std::int32_t>& ranks;               // that should be there, ascending
  const std::map<std::int32_t, GroupValues>& declared;  // by optimizer
  bool has_edit = false;  // somebody announced that weights were edited before this step
};

// What a step left is what the next one finds: weights, between param_updated and param_origin.
void check_gap(const Window& window, Findings& found);
// Ranks that hold the same tensor hold the same elements. Said where it begins.
void check_replicas(const Window& window, Findings& found);
// The reduced gradient is the mean of the unreduced ones, but for one factor of clipping.
void check_reduce(const Window& window, Findings& found);
// exp_avg = beta1 exp_avg + (1 - beta1) gradient, over sums.
void check_exp_avg(const Window& window, Findings& found);
// exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) gradient^2, over sums.
void check_exp_avg_sq(const Window& window, Findings& found);
// SGD: the weights moved by lr times the gradient or the momentum buffer, over sums. Any optimizer:
// weights that had to move did.
void check_update(const Window& window, Findings& found);

// Gradients that were not zero in ten steps and then are, in three. Keeps what it saw.
class ZeroGradients {
 public:
  void check(const Window& window, Findings& found);

 private:
  struct Seen {
    int non_zero = 0;  // in a row
    int zero = 0;      // in a row, after those
    std::int64_t since = 0;
  };
  std::map<std::pair<std::int32_t, std::uint32_t>, Seen> seen_;  // rank, tensor
};

// Learning rates that rise as no schedule does, and other values of a group that change. Keeps what
// was declared.
class DeclaredJumps {
 public:
  void check(const Window& window, Findings& found);

 private:
  struct History {
    double last = 0.0;
    double rise = 0.0;  // of the change before
    double largest = 0.0;
    int values = 0;
  };
  std::map<std::string, History> history_;  // optimizer, group, name
};

}  // namespace trainmon::detect
