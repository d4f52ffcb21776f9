// One function per check, each over one step and the one before it. A check says nothing where the
// rows that it needs are not there; docs/detection.md says what each proves.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "detect/evidence.h"
#include "detect/findings.h"
#include "detect/inputs.h"

namespace trainmon::detect {

// What a group of an optimizer says: name -> value, NaN for what is no number.
using DeclaredGroup = std::map<std::string, double>;
// Of one optimizer, by group.
using GroupValues = std::map<std::int32_t, DeclaredGroup>;
// NaN for what is no number.
double number_of(const DeclaredValue& value);
// nullopt where the group does not say, or no number.
std::optional<double> value_of(const DeclaredGroup& group, const char* name);
// Says so, and not 0.
bool is_set(const DeclaredGroup& group, const char* name);

// Roundings of one element: of two products, of a sum, and of what a fused or a fast form does
// otherwise.
inline constexpr double kRoundings = 4.0;
// Behind what an equation says of an optimizer whose formula the record does not name.
inline constexpr std::string_view kUnlessOther = ", unless the optimizer has a formula of its own";
// How far a sum is from what one group makes of it, and what rounding explains.
struct Distance {
  double off = 0.0;
  double bound = 0.0;
  Evidence evidence = Evidence::statistics;
  bool is_within() const { return off <= bound; }
};
// What elements of this dtype may be off by where rounding is not relative, all together.
double underflow(const Observation& one);
// How far from 0 `left` is, which is so where the elements of `rounded` are what a formula says.
Distance distance_of(const Linear& left, const Observation& rounded, Evidence evidence);
// A number that a person writes: of at most two digits, or a few bits as 0.375. Of a value above 0,
// and relative to it.
bool is_round(double value, double tolerance);
// What was declared, by rank and optimizer.
using DeclaredOfRanks = std::map<std::int32_t, std::map<std::int32_t, GroupValues>>;
// nullptr where the optimizer declared nothing on that rank.
const GroupValues* groups_of(const DeclaredOfRanks& declared, std::int32_t rank,
                             std::int32_t optimizer);
// Where somebody said that weights are edited: by rank, the seq of the row that came next.
using Edits = std::map<std::int32_t, std::set<std::uint64_t>>;

// Optimizers whose steps are those of a formula that checks know, by rank: the record names them.
using KnownFormulas = std::map<std::int32_t, std::set<std::int32_t>>;

// What log() was given as the norm of all gradients, by rank.
struct LoggedNorm {
  std::string name;
  double value = 0.0;
};
using LoggedNorms = std::map<std::int32_t, LoggedNorm>;
// Whether people log the norm of all gradients by this name: grad_norm, train/grad_norm, ...
bool is_gradient_norm(std::string_view name);

// Whether a check of one tensor on one rank ever held. What fails from the first time on may be
// meant: a hook, another formula. It is said once, and not as certain.
class Held {
 public:
  // To be told of every result. True: a failure is a finding; `certain` says of which kind.
  bool fails(Check check, std::int32_t rank, std::uint32_t place, bool holds, bool& certain);
  bool has_held(Check check, std::int32_t rank, std::uint32_t place) const {
    const auto known = states_.find({check, rank, place});
    return known != states_.end() && known->second == State::held;
  }
  // What failed may be meant: later failures are not listed.
  void doubt(Check check, std::int32_t rank, std::uint32_t place) {
    states_[{check, rank, place}] = State::doubted;
  }

 private:
  enum class State : std::uint8_t { unknown, held, never, doubted };
  struct Count {
    std::int64_t all = 0;    // places
    std::int64_t never = 0;  // of them
  };
  std::map<std::tuple<Check, std::int32_t, std::uint32_t>, State> states_;
  std::map<std::pair<Check, std::int32_t>, Count> counts_;
};

// Which weights a step of an optimizer has moved, so far as rows tell. One thread.
class Moves {
 public:
  // Of a step that was checked.
  void note(const StepEvidence& step);
  // Of the tensor and rank of a row.
  bool have(const Observation& one) const;

 private:
  std::map<std::int32_t, std::vector<bool>> moved_;  // by rank, tensor
};

struct Window {
  const StepEvidence& now;
  const StepEvidence* before = nullptr;  // of the step before, of the same restart; or nullptr
  const std::vector<Tensor>& tensors;
  const std::vector<std::int32_t>& ranks;  // that should be there, ascending
  const DeclaredOfRanks& declared;
  const Edits& edits;
  const std::set<std::int32_t>& lossy;  // ranks from which rows were lost
  Held& held;
  const LoggedNorms& logged_norms;  // of this step
  const KnownFormulas& formulas;
  const Moves& moves;  // of the steps before
  // Ranks and chunks of which a forward was in evaluation mode, with gradients: since the last
  // step. -1 - chunk: only what is inside its wrapper was.
  const std::set<std::pair<std::int32_t, std::int32_t>>& evaluated;
  // Ranks and optimizers whose step added to gradients of the step before.
  const std::set<std::pair<std::int32_t, std::int32_t>>& uncleared;

  // nullptr where the optimizer of a tensor declared nothing on that rank.
  const GroupValues* groups(const Observation& one) const;
  // By the values of the parameter's group, where its step was recorded. Else of the group that
  // comes nearest: an equation holds when it holds for one group. nullopt where one cannot be told.
  std::optional<Distance> distance(
      const Observation& one,
      const std::function<std::optional<Distance>(const DeclaredGroup&)>& distance) const;
  // Whether the optimizer of a tensor takes the steps of a formula that is known. Others declare
  // the values of one, too.
  bool has_known_formula(const Observation& one) const;
  // Why a weight may be the training's own to change. It has no gradient in a step in which others
  // have, or no step has moved it. Empty where nothing says so.
  std::string why_own(const StepEvidence& step, const Observation& weight) const;
  // Whether an edit was announced between two rows of one rank.
  bool has_edit(const Observation& from, const Observation& to) const;
  // One of this step, of one rank; certain, without a text.
  Finding finding(Check check, Stage stage, std::int32_t rank,
                  std::vector<std::uint32_t> of = {}) const;
  // The same of what goes on since a step of this start: not certain.
  Finding notice(Check check, Stage stage, std::int32_t rank, std::int64_t since,
                 std::vector<std::uint32_t> of = {}) const;
  // Tensors of an optimizer that have a reduced gradient on a rank in this step, ascending.
  std::vector<std::uint32_t> reduced_of(std::int32_t rank, std::int32_t optimizer) const;
  // Takes a result in; nullopt where it is no finding, else the finding but for its text.
  std::optional<Finding> result(Check check, Stage stage, const Observation& one, bool holds) const;
  // The same of an equation of an optimizer: no finding is certain where its formula is not known.
  std::optional<Finding> result_of_formula(Check check, Stage stage, const Observation& one,
                                           bool holds) const;
};

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
// tells the rank, it is the one whose weights changed between two steps.
void check_replicas(const Window& window, Findings& found);
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
  };
  struct Seen {
    Scaled last;
    int alike = 0;  // steps in a row with one factor and other norms
    std::int64_t since = 0;
    bool has_held = false;  // a step that was not scaled, or by another factor
    bool held_before = false;
    bool is_said = false;
    double limit = 0.0;  // the norm that two factors left; 0: none so far
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
  // `factors` by place of the rank in the window.
  void check_factors(const Window& window, const std::vector<Scaled>& factors, const Group& group,
                     Findings& found);
  static Failed failed(const Window& window, const Reduction& one, std::vector<Off> off,
                       const std::vector<Scale>& scales, const Finding& first);
  static void name_holders(std::vector<Failed>& all);
  void report(std::vector<Failed>& all, Findings& found);
  // Whether all gradients of a rank were multiplied by one number, and that may be meant.
  bool is_meant(const Window& window, const Group& group, std::int32_t rank, Findings& found);
  using Place = std::pair<std::int32_t, std::int32_t>;  // rank, optimizer
  std::map<Place, Seen> seen_;
  std::map<Place, Grown> grown_;
  ReducedMicroSteps micro_steps_;
  // Largest elements of one gradient that may have been clipped by value: what was said of it.
  std::map<double, std::vector<Finding>> limits_;
  std::set<std::uint32_t> said_;  // tensors that may be clipped alone
};

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

// Batches that are given again, to the same rank or to another one, and ids whose entropy jumps.
// Inputs that are not finite, once of each argument. Data that begin anew where a start goes on
// from another one. Keeps fingerprints of the last batches of each rank.
class Inputs {
 public:
  void check(const Window& window, Findings& found);

 private:
  class Report;
  // Forwards of one chunk of the model: the first of each micro step, the second, ... With one more
  // or less in a step each may be another one: an auxiliary loss, or an evaluation in between. So
  // steps of each number of forwards have a history of their own.
  struct Place {
    std::int32_t rank, chunk, forwards, call;
    auto operator<=>(const Place&) const = default;
  };
  static Place place_of(const InputCall& call) {
    return {call.rank, call.chunk, call.forwards, call.call};
  }
  // Calls in a row that were given what should be new.
  struct Run {
    std::int64_t length = 0, step = 0;  // the step of the first
    bool follows_new = false;
    bool is_beside_new = false;  // another forward of its steps was given a new batch
    bool is_over_steps = false;  // a batch of an earlier step is among them
    bool is_said = false;
  };
  // Runs of one length, the first of which was certain.
  struct Regular {
    std::int64_t length = 0;
    std::int64_t times = 0;
    std::int64_t step = 0;    // of the first run
    std::int64_t beyond = 0;  // the step in which a later one became longer
    bool is_said = false;
  };
  using Given = LastGiven::Given;
  static constexpr std::size_t kBatches = 4096;  // that are remembered of each rank
  struct Stream {
    LastGiven given{kBatches};
    std::int64_t closest = std::numeric_limits<std::int64_t>::max();  // calls between equal batches
    Run run = {};
    Regular regular = {};
    std::int64_t repeated = 0;  // calls that were given a batch again
    Given first = {};           // of them
    std::string first_text = {};
    bool is_noticed = false;
  };
  struct Shared {
    std::int64_t alone = 0;  // calls without a rank that is given the same; -1: there was one
    Run run = {};
    bool is_noticed = false;
  };
  // What the start before was given, where it was given nothing twice.
  struct Earlier {
    LastGiven given{kBatches};
    std::int64_t again = 0;  // the first calls of this start that were given one of them
    std::int64_t from = 0;   // the step in which the first of those was given
    std::int64_t since = 0;  // the step of the first such call
  };
  struct Entropies {
    std::deque<double> last;
    bool is_noticed = false;
  };

  // Of a rank, or of all.
  void forget(std::optional<std::int32_t> rank = {});
  void forget_edited(const Window& window, const std::vector<InputCall>& calls);
  void begin_start();
  void check_begins_anew(std::int64_t step, const InputCall& call, Report& report);
  // Whether another forward of the rank has a batch that this forward had not before.
  bool has_new_beside(const InputCall& call, const std::vector<InputCall>& calls) const;
  void check_again(std::int64_t step, const InputCall& call, bool is_beside_new, Report& report);
  static void end_run(Stream& stream, std::int32_t rank, Report& report);
  void check_ranks(std::int64_t step, const std::vector<InputCall>& calls, Report& report);
  void check_entropy(const Window& window, const InputCall& call, Report& report);

  std::int32_t restart_ = 0;
  std::int64_t step_ = 0, apart_ = 0;  // the last step, and how far it was from the one before
  std::map<Place, Stream> streams_;
  std::map<Place, Earlier> earlier_;
  std::map<Place, Shared> shared_;
  std::map<std::pair<Place, std::string>, Entropies> entropies_;
  std::map<std::int32_t, std::uint64_t> last_seq_;  // by rank
  std::set<std::string> not_finite_;                // arguments: said
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
