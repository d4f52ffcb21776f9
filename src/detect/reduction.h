// What the check reduce knows of one step: means of unreduced gradients, and factors by which
// reduced ones may differ from them.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "detect/reduce.h"
#include "detect/shards.h"

namespace trainmon::detect {

inline constexpr const char* kNotTheMean =
    "the reduced gradient is not the mean of the unreduced ones";

struct Reduction {
  std::uint32_t tensor = 0;
  Evidence evidence = Evidence::statistics;
  Linear mean;           // of the unreduced gradients
  double bound = 0.0;    // of the rounding of a reduced one
  bool adds_up = false;  // those of micro steps, each of which was reduced by itself
  std::optional<Gathered> gathered = {};  // of the shards that ranks hold of the reduced one

  // The whole gradient that a rank steps with, or has a shard of. nullptr: none to be checked.
  const Observation* reduced(const Window& window, std::int32_t rank) const;
  // What ranks gave to the mean: all of a rank, and in each micro step where these add up.
  std::vector<std::pair<std::int32_t, Linear>> contributions(const Window& window) const;
};
// Sets its evidence, mean and bound by what else it says.
void take_mean(const Window& window, Reduction& one);
// Whether a reduced gradient is the mean of those of a backward that seemed to be given up, or of
// the sums of all backwards. It may be clipped. A loop may put gradients aside.
bool is_of_earlier(const Window& window, const Reduction& one, const Observation& reduced);
// Of one optimizer. Leaves out what has several micro steps whose way is not known.
void settle_micro_steps(const Window& window, std::vector<Reduction>& all,
                        ReducedMicroSteps& known);
// Of each tensor that has an unreduced gradient of every rank, by optimizer. Where nothing says how
// those of ranks relate, as behind a communication hook that is not known, there is no equation.
// Nor is there one where ranks hold shards that do not make one whole. Of several micro steps the
// way must be known: from this step, or from `known`.
std::map<std::int32_t, std::vector<Reduction>> reductions(const Window& window,
                                                          ReducedMicroSteps& known);

// The gradients of one optimizer.
struct Reductions::Group {
  std::int32_t optimizer;
  const std::vector<Reduction>& all;
  std::vector<std::uint32_t> tensors;
};

// Clipped by value, or each tensor by its own norm: its largest element or its norm is then the
// limit, which is a round number. One factor of all tensors does not hold for it. A norm may be
// round by chance. So the gradient has to be a part of the mean, or as long as 1, 10 or 0.1.
bool may_be_clipped_alone(const Observation& reduced, const Reduction& one);

// A factor by which gradients of one rank were scaled, and how far that may be off.
struct Scale {
  double factor = 1.0;
  double error = 0.0;
  // One that may be 0 as well explains any gradient.
  bool is_told() const { return error < std::abs(factor); }
};
bool is_clipping(double factor);

// A reduced gradient that is off on one rank, and by how much.
struct Off {
  const Observation* reduced;
  double value = 0.0;
  double bound = 0.0;
  bool is_within() const { return value <= bound; }
};
Off off_by(const Observation& reduced, const Reduction& one, const Scale& scale);
// By the factor that explains it best.
Off nearest_of(const Observation& reduced, const Reduction& one, const std::vector<Scale>& scales);
// By which a reduced gradient is scaled.
Scale own_scale(const Observation& reduced, const Reduction& one);

struct ScaledTensor {
  const Reduction* mean;
  const Observation* reduced;
};
// The tensors of one rank that one factor may explain.
std::vector<ScaledTensor> scaled_of(const Window& window, const std::vector<Reduction>& all,
                                    std::int32_t rank);
// The factor of most tensors; 1 where there is none.
Scale common_scale(const std::vector<ScaledTensor>& all);
// All by which tensors of one rank may have been clipped. The first is none, the second that of
// most of them. The others are of groups of two tensors at the least.
std::vector<Scale> scales_of(std::vector<ScaledTensor> left);

}  // namespace trainmon::detect
