// What a check is given: the rows of one step and of the one before, and what is known of the run
// so far. Here, too, is how far an equation is off, and of what rounding explains.
#pragma once

#include <cstdint>
#include <functional>
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

// Whether a check of one tensor on one rank ever held. What fails from the first time on may be
// meant: a hook, another formula. It is said once, and not as certain.
class Held {
 public:
  // What is checked of a tensor has one history. Of replicas each quantity has one.
  static std::uint32_t place(Check check, std::uint32_t tensor, Quantity quantity) {
    const auto own = check == Check::replicas ? static_cast<std::uint32_t>(quantity) : 0;
    return tensor * kQuantities + own;
  }
  static std::uint32_t place(Check check, const Observation& one) {
    return place(check, one.tensor, one.quantity);
  }
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

}  // namespace trainmon::detect
