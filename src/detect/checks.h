// One function or class per check, each over one step and the one before it. A check says nothing
// where the rows that it needs are not there; docs/detection.md says what each proves. Checks that
// keep more have headers of their own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "detect/window.h"

namespace trainmon::detect {

// Weights that are equal to one another, in the first step of a record.
void check_start(const Window& window, Findings& found);
// Rows that the step before has. On one rank alone of those that hold the same, certain; moments
// that end while gradients go on, not.
void check_present(const Window& window, Findings& found);
// Ranks of which some did not step on a backward on which others did. Keeps that until the next
// start.
class Parted {
 public:
  // Whether the rows that ranks have of this step may be of different steps.
  bool check(const Window& window, Findings& found);

 private:
  bool is_parted_ = false;
};
// Says by the bits of rows of one tensor which ranks are outside the largest group of equals. It is
// one of all where no group is larger than the others together. By `evidence` of the finding.
void name_odd_ranks(const std::vector<const Observation*>& ranks, Finding& finding);
// Ranks that hold the same tensor hold the same elements. Said where it begins. Where no majority
// tells the rank, it is the one whose weights changed between two steps. Weights that a step left
// different, and that are the same before the next one, may have been sent behind the step.
class Replicas {
 public:
  void check(const Window& window, Findings& found);

 private:
  void check(const Window& window, const Observation& first,
             const std::vector<const Observation*>& ranks, Findings& found);
  void doubt_sent(const Window& window, Findings& found);

  std::vector<Finding> left_;  // weights that the step before left different
  bool are_sent_ = false;      // behind a step, some time before: said once
};
// exp_avg = beta1 exp_avg + (1 - beta1) gradient, over sums or sketches.
void check_exp_avg(const Window& window, Findings& found);
// exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) gradient^2, over sums.
void check_exp_avg_sq(const Window& window, Findings& found);
// The weights moved by lr times the step that the optimizer's formula takes, and by their decay.
// It is checked over sketches, where that step was recorded; of SGD over sums, too. Else weights
// that had to move did. Counts the steps that it saw.
class Updates {
 public:
  void check(const Window& window, Findings& found);

 private:
  std::int32_t restart_ = 0;
  std::map<std::pair<std::int32_t, std::uint32_t>, std::int64_t> steps_;  // by rank, tensor
};

// Gradients that were not zero in ten steps and then are, in three. Keeps what it saw.
class ZeroGradients {
 public:
  void check(const Window& window, Findings& found);
  // When no step comes any more: those that stay zero, as of an expert that no token chooses again.
  void end(Findings& found) const;

 private:
  struct Seen {
    int non_zero = 0;  // in a row
    int zero = 0;      // in a row, after those
    std::int64_t since = 0;
    std::int32_t restart = 0;  // of `since`
    int ever = 0;              // steps that had another one
    int longest = 0;           // of rows of zeros before
    bool is_said = false;      // of `zero`
  };
  std::map<std::pair<std::int32_t, std::uint32_t>, Seen> seen_;  // rank, tensor
};

// Whether people log the norm of all gradients by this name: grad_norm, train/grad_norm, ...
bool is_gradient_norm(std::string_view name);

// Norms of gradients that were logged and are not those of the rows. Keeps to what each rank clips.
class GradientNorms {
 public:
  void check(const Window& window, Findings& found);

 private:
  struct Seen {
    std::optional<double> limit;  // that of a step in which gradients may have been clipped
    bool is_said = false;
  };
  std::map<std::int32_t, Seen> seen_;  // by rank
};

// Learning rates that rise as no schedule does, and other values of a group that change. Keeps what
// was declared. With which rate a start goes on, LearningRates says.
class DeclaredJumps {
 public:
  void check(const Window& window, Findings& found);

 private:
  void check_ranks(const Window& window, Findings& found);
  struct History {
    double last = 0.0;
    double rise = 0.0;  // of the change before
    double largest = 0.0;
    int values = 0;
    bool is_said = false;
  };
  static bool is_jump(History& history, double value, bool is_rate);
  std::map<std::string, History> history_;  // rank, optimizer, group, name
  std::int32_t restart_ = 0;
  std::set<std::pair<std::int32_t, std::string>> differ_;  // optimizer, name: said
};

}  // namespace trainmon::detect
