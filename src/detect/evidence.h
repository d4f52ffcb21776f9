// What the checks of a step look at. It is a few numbers and a digest of each row, by tensor,
// quantity and rank. A row that was recorded with checks has a fingerprint and a sketch as well.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "detect/input_calls.h"
#include "trainmon/record.h"

namespace trainmon::detect {

// The tensors of a step that obey equations, and buffers; all other kinds are of no check.
enum class Quantity : std::uint8_t {
  weight_before,   // param_origin
  grad_unreduced,  // accumulated, before the reduction over ranks
  grad_reduced,    // as the optimizer uses it
  exp_avg,
  exp_avg_sq,
  momentum_buffer,
  update,        // the step that the optimizer's formula takes
  weight_after,  // param_updated
  buffer,        // after the step
};
inline constexpr int kQuantities = 9;
// -1 for a kind that is none of them.
int quantity_of(std::string_view kind);
std::string_view quantity_name(Quantity quantity);

// A parameter or a buffer, as all ranks know it.
struct Tensor {
  std::string name;
  std::int32_t chunk = 0;
  std::int32_t optimizer = 0;
  std::string element = {};  // of a tensor that is no parameter: "input.0"
  bool is_buffer = false;
};

// The finalizer of SplitMix64: mixes all bits.
std::uint64_t mixed(std::uint64_t x);

// What a check compared. Of statistics all fields of the states, or the sum.
enum class Evidence : std::uint8_t { statistics, fingerprints, sketches };
inline constexpr int kEvidences = 3;
std::string_view evidence_name(Evidence evidence);

// The sketch of what rounding does is at most so many times as long as that. It holds where
// rounding is alike for all elements (stats/check.h). It holds where rounding has any signs, but
// for once in 10^8 times.
inline constexpr double kStretch = 2.5;

// A number, or eight, that are linear in the elements of a tensor: their sum, or their sketch.
struct Linear {
  std::array<double, 8> values = {};
  double size = 0.0;  // elements off by u of their size each move `values` by at most u times this
  double stored = 0.0;  // how far `values` are off as they are kept in the record

  Linear& add(double factor, const Linear& other);
  double norm() const;
  double dot(const Linear& other) const;
};

// One row. Sums are those of the elements divided by the loss scale that is still on them.
struct Observation {
  std::uint32_t tensor = 0;
  Quantity quantity = Quantity::weight_before;
  std::int32_t rank = 0;
  DType dtype = DType::float32;
  bool is_replicated = false;    // every rank holds the same elements
  std::uint64_t part = 0;        // of the tensor: others are other parts, of one way to cut it
  bool is_independent = false;   // nothing says how those of ranks relate
  bool forward_changes = false;  // flag::kForwardChanges
  bool is_before_step = false;   // flag::kBeforeStep
  bool by_operations = false;    // flag::kByOperations
  bool is_finite = true;
  std::int32_t attempt = 0;
  std::int32_t accum = 0;
  std::uint64_t seq = 0;
  std::uint64_t digest = 0;  // of the whole state: equal elements have equal states
  double count = 0.0;
  double sum = 0.0;
  double sum_sq = 0.0;
  double absmax = 0.0;
  double min = 0.0, max = 0.0;  // of the finite elements; NaN of estimates
  double zeros = 0.0;           // elements that are 0, or nearly (config `eps`)
  std::optional<std::uint64_t> fingerprint = {};
  std::vector<float> sketch = {};  // empty: none
  // How far the sketch is off beyond its own rounding: it was added up of several.
  double added = 0.0;
  // Of `update` alone. `group` is the parameter's. `decays_apart`: the optimizer takes its decay
  // of the weights apart from the step, though its group does not say so.
  std::int32_t group = -1;
  bool decays_apart = false;

  double norm() const;
  // All elements are one number, as those of a bias or of a norm are at first.
  bool is_constant() const;
  // At least the sum of all |x|: by Cauchy and Schwarz, or by the largest.
  double l1_bound() const;
  // By how much of l1_bound() its sums may be off by themselves: they are of float64, in which
  // equal elements round alike.
  double summing() const;
  // Of its sum, or of its sketch.
  Linear linear(Evidence evidence) const;
};
// Whether two rows are of equal elements.
bool are_equal(const Observation& a, const Observation& b);
// Whether two rows may be of the same elements, wherever those lie: sums differ by rounding alone.
bool are_alike(const Observation& a, const Observation& b);
// Whether rows without fingerprints differ as sums of equal elements in another order do. Elements
// lie so in memory after .to(memory_format=...).
bool may_be_reordered(const Observation& a, const Observation& b);
// Whether that can be told: without fingerprints both must be measured alike.
bool are_comparable(const Observation& a, const Observation& b);
// Whether these are of one tensor that several ranks hold alike, and it can be told whether they
// do.
bool are_replicas(const std::vector<const Observation*>& ranks);
bool are_all_equal(const std::vector<const Observation*>& ranks);
// By what these are compared for equality, and in equations: checks where all of them have one.
Evidence evidence_of_bits(const std::vector<const Observation*>& all);
Evidence evidence_of_sums(const std::vector<const Observation*>& all);
// Of a row with these flags; the loss scale counts where they say that it is still on. Which row it
// is, is the caller's to say.
Observation observe(const RowState& state, std::uint32_t flags, double loss_scale,
                    const RowCheck* check = nullptr);

// What a module returned: in the forward, where the backward recomputes that, or in a canary. Of a
// canary the gradients of parameters, too.
struct ModuleOutput {
  enum class Of : std::uint8_t { forward, recomputed, canary, canary_gradient };
  std::int32_t rank = 0;
  std::uint32_t tensor = 0;
  std::int32_t accum = 0;
  std::int32_t call = 0;
  std::uint64_t seq = 0;
  Of of = Of::forward;
  std::uint64_t digest = 0;  // this and what follows as of an observation
  double norm = 0.0, sum = 0.0, count = 0.0;
};

// All observations of one step and restart, the last attempt of each.
class StepEvidence {
 public:
  StepEvidence(std::int32_t restart, std::int64_t step) : restart(restart), step(step) {}

  void add(const Observation& one) { all_.push_back(one); }
  void add(Input&& one) { inputs_.push_back(std::move(one)); }
  void add(const ModuleOutput& one) { outputs_.push_back(one); }
  // After the last add(): of several for one place the last in the order of execution stays. Of
  // unreduced gradients that ranks do not reduce to replicas, earlier() has the others.
  void sort();
  // The models that are given more than tensors that have rows, by rank and chunk.
  void note_unread(const std::set<std::pair<std::int32_t, std::int32_t>>& models) {
    for (Input& one : inputs_) one.is_part_of_call |= models.contains({one.rank, one.chunk});
  }
  // nullptr when there is none.
  const Observation* find(std::uint32_t tensor, Quantity quantity, std::int32_t rank) const;
  // Of all ranks, ascending.
  std::vector<const Observation*> of(std::uint32_t tensor, Quantity quantity) const;
  // Unreduced gradients of micro steps before that of find(), of its attempt, by rank.
  std::span<const Observation> earlier(std::uint32_t tensor) const;
  // Unreduced gradients of attempts before the last one, by rank.
  std::span<const Observation> given_up(std::uint32_t tensor) const;
  // Nothing needs them of a step that was checked.
  void forget_earlier() { earlier_ = given_up_ = {}; }
  const std::vector<Observation>& all() const { return all_; }
  // After sort(): those that have an observation, ascending.
  const std::vector<std::uint32_t>& tensors() const { return tensors_; }
  const std::vector<Input>& inputs() const { return inputs_; }
  const std::vector<ModuleOutput>& outputs() const { return outputs_; }

  std::int32_t restart;
  std::int64_t step;

 private:
  std::vector<Observation> all_;
  std::vector<Observation> earlier_, given_up_;
  std::vector<std::uint32_t> tensors_;
  std::vector<Input> inputs_;
  std::vector<ModuleOutput> outputs_;
};

}  // namespace trainmon::detect
