// The check of how micro steps and ranks made the reduced gradient.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "detect/window.h"

namespace trainmon::detect {

struct Reduction;
// How micro steps made the reduced gradient of a tensor, when most tensors told.
struct ReducedMicroStep {
  std::size_t rows = 0;  // of all ranks
  bool adds_up = false;  // each was reduced by itself; else the last row has them all
};
using ReducedMicroSteps = std::map<std::uint32_t, ReducedMicroStep>;
struct Scale;
struct Off;

// The reduced gradient is the mean of the unreduced ones, but for one factor of clipping. Such a
// factor leaves one norm, and is another in another step. A larger one is no clipping, but where
// it is another in other steps the training multiplies its gradients. Keeps the factors.
class Reductions {
 public:
  void check(const Window& window, Findings& found);

 private:
  struct Group;
  struct Failed;
  // By which most gradients of a rank are scaled.
  struct Scaled {
    double factor = 1.0;
    double error = 0.0;
    double norm = 0.0;  // of all reduced gradients; 0: the factor is not that of most
    std::int64_t step = 0;
    double backwards = 1.0;  // whose gradients are added up
  };
  struct Seen {
    Scaled last;
    int alike = 0;  // steps in a row with one factor and other norms
    std::int64_t since = 0;
    bool has_held = false;  // a step that was not scaled, or by another factor
    bool held_before = false;
    bool is_said = false;
    double limit = 0.0;      // the norm that two factors left; 0: none so far
    double backwards = 0.0;  // of the last step that had another factor
    // Two factors left two norms, and none of these is the limit: the training scales as it likes.
    bool is_free = false;
  };
  // Steps in which all gradients of a rank were larger than the mean, by one factor.
  struct Grown {
    int plain = 0;        // steps before, in which none was
    double factor = 0.0;  // of the last such step; 0: none so far
    double error = 0.0;
    int alike = 0;  // such steps with this factor
    bool is_meant = false;
    bool is_said = false;
    std::vector<Finding> certain = {};  // what was said of them
  };
  // Whether that has gone on for a while, and it is time to say so.
  static bool is_no_clipping(Seen& seen, const Scaled& now);
  void check(const Window& window, const Group& group, Findings& found);
  // Whether the factor makes a mean of what backwards add up to.
  static bool is_of_backwards(const Scaled& one);
  // `factors` by place of the rank in the window.
  void check_factors(const Window& window, const std::vector<Scaled>& factors, const Group& group,
                     Findings& found);
  static Failed failed(const Window& window, const Reduction& one, std::vector<Off> off,
                       const std::vector<Scale>& scales, const Finding& first);
  static void name_holders(std::vector<Failed>& all);
  void report(std::vector<Failed>& all, Findings& found);
  // Whether all gradients of a rank were multiplied by one number, and that may be meant.
  bool is_meant(const Window& window, const Group& group, std::int32_t rank, Findings& found);
  static constexpr int kOften = 3;
  std::map<std::uint32_t, int> held_;                   // steps, by tensor; up to kOften
  using Place = std::pair<std::int32_t, std::int32_t>;  // rank, optimizer
  std::map<Place, Seen> seen_;
  std::map<Place, Grown> grown_;
  ReducedMicroSteps micro_steps_;
  // Largest elements of one gradient that may have been clipped by value: what was said of it.
  std::map<double, std::vector<Finding>> limits_;
  std::set<std::uint32_t> said_;  // tensors that may be clipped alone
};

}  // namespace trainmon::detect
