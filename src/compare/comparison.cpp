// Pairs are gone through in the order of execution, each with the tolerance of its place.
#include "compare/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "model/first_bad.h"
#include "model/rounding.h"

namespace trainmon {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kOwnWeights = 4.0;
constexpr std::size_t kNoWeight = std::numeric_limits<std::size_t>::max();

// What one micro step of one rank computes from its share of the batch.
bool is_of_share(std::string_view kind) {
  const int moment = moment_of(kind);
  return moment == 1 || moment == 2 || kind == kind::kGradMicro;
}

bool has_other_size(const ComparedRow& a, const ComparedRow& b) {
  const double x = a.values[kCount], y = b.values[kCount];
  return x != y && !std::isnan(x) && !std::isnan(y);
}

std::string module_of(const ComparedTensor& tensor) {
  std::string module = unwrapped_name(tensor.name);
  if (!is_of_module(tensor.kind)) {
    const std::size_t dot = module.rfind('.');
    module.resize(dot == std::string::npos ? 0 : dot);
  }
  return std::to_string(tensor.chunk) + ":" + module;
}

}  // namespace

Comparison::Comparison(const CompareOptions& options, ComparedRun& a, ComparedRun& b,
                       ComparedRun* null, const WholeRuns& known)
    : options_(options),
      a_(a),
      b_(b),
      null_(null),
      known_(known),
      steps_a_(a),
      steps_b_(b),
      paired_(a.tensors, b.tensors, known.backward),
      weight_steps_(known.first_moves),
      null_weight_steps_({}) {
  if (null == nullptr) return;
  steps_null_.emplace(*null);
  null_paired_.emplace(a.tensors, null->tensors, known.backward);
}

void Comparison::run(std::int64_t steps) {
  static const Rows kNone;
  // Runs may be one and the same.
  for (SideSteps* const side : {&steps_a_, &steps_b_}) side->begin();
  if (steps_null_) steps_null_->begin();
  const auto is_within = [](const SideSteps& other) {
    return other.has_begun() && !other.is_at_end();
  };
  while (true) {
    std::optional<std::int64_t> next;
    for (SideSteps* const side : {&steps_a_, &steps_b_, steps_null_ ? &*steps_null_ : nullptr}) {
      if (side == nullptr || side->is_at_end()) continue;
      next = std::min(next.value_or(side->step()), side->step());
    }
    if (!next) return;
    const auto has_step = [&](const SideSteps& side) {
      return !side.is_at_end() && side.step() == *next;
    };
    const bool has_a = has_step(steps_a_), has_b = has_step(steps_b_);
    if (has_a && steps-- == 0) return;
    const Rows& a = has_a ? steps_a_.rows(known_.is_by_rank) : kNone;
    const Rows& b = has_b ? steps_b_.rows(known_.is_by_rank) : kNone;
    if (has_a) steps_a_.describe(a);
    if (has_b) steps_b_.describe(b);
    add_tensors();
    if (steps_null_) {
      const bool has_null = has_step(*steps_null_);
      const Rows& null = has_null ? steps_null_->rows(known_.is_null_by_rank) : kNone;
      if (has_null) steps_null_->describe(null);
      const bool a_by_rank = known_.is_by_rank || known_.is_null_by_rank;
      compare_null(*next, has_a ? steps_a_.rows(a_by_rank) : kNone, null, is_within(*steps_null_),
                   is_within(steps_a_));
      if (has_null) steps_null_->advance();
    }
    paired_.match(*next, a, is_within(steps_b_), b, is_within(steps_a_));
    compare(*next, a, b);
    if (has_a) steps_a_.advance();
    if (has_b) steps_b_.advance();
  }
}

// Those of A that were met since.
void Comparison::add_tensors() {
  for (auto i = static_cast<std::uint32_t>(uses_.size()); i < a_.tensors.size(); ++i) {
    const ComparedTensor& tensor = a_.tensors[i];
    Use& use = uses_.emplace_back();
    use.kind = kinds_.try_emplace(tensor.kind, static_cast<int>(kinds_.size())).first->second;
    use.scale = has_gradient_scale(tensor.kind) ? use.kind : -1;
    const auto module = static_cast<std::uint32_t>(module_numbers_.size());
    use.module = module_numbers_.try_emplace(module_of(tensor), module).first->second;
    const std::string name = std::to_string(tensor.chunk) + ":" + unwrapped_name(tensor.name);
    const auto parameter = static_cast<std::uint32_t>(parameter_numbers_.size());
    use.parameter = parameter_numbers_.try_emplace(name, parameter).first->second;
    use.is_weight = is_weight(tensor.kind);
    use.is_activation = tensor.kind == kind::kActv;
    use.is_of_module = is_of_module(tensor.kind);
    use.is_of_share = is_of_share(tensor.kind);
    use.is_gradient = is_parameter_gradient(tensor.kind);
    use.is_unreduced = tensor.kind == kind::kGradUnreduced;
    use.is_nameless = tensor.name.empty() && tensor.element.empty();
    use.is_bias = known_.biases.contains(i);
    scale_kinds_.push_back(use.scale);
    modules_.push_back(use.module);
  }
  owned_.resize(module_numbers_.size(), 0.0);
  largest_weight_.resize(module_numbers_.size(), 0.0);
  noisy_.resize(parameter_numbers_.size(), 0);
  levels_.resize(kinds_.size());
  last_size_.resize(uses_.size(), -1.0);
  said_size_.resize(uses_.size(), 0);
  said_dtype_.resize(uses_.size(), 0);
}

void Comparison::compare_null(std::int64_t step, const Rows& a, const Rows& null, bool a_within,
                              bool null_within) {
  StepPairs& paired = *null_paired_;
  paired.match(step, a, a_within, null, null_within);
  const std::vector<RowPair>& pairs = paired.pairs();
  if (paired.version() != null_version_) {
    null_version_ = paired.version();
    null_weights_.assign(pairs.size(), kNoWeight);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (!uses_[pairs[i].tensor].is_weight) continue;
      null_weights_[i] = null_weight_steps_.place_of(pairs[i].tensor, pairs[i].rank, false);
    }
  }
  null_pair_count_ += static_cast<std::int64_t>(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const ComparedRow &row = a[pairs[i].a], &other = null[pairs[i].b];
    WeightStep weight;
    if (null_weights_[i] != kNoWeight) {
      weight = null_weight_steps_.next(null_weights_[i], row.values, other.values);
    }
    if (has_other_size(row, other)) continue;
    noise_.add(pairs[i].tensor, uses_[pairs[i].tensor].kind,
               levels_of(differences_of(row.values, other.values, weight,
                                        a_.resolution + null_->resolution)));
  }
  noise_.end_step();
}

void Comparison::compare(std::int64_t step, const Rows& a, const Rows& b) {
  note_backward(a);
  const std::vector<RowPair>& pairs = paired_.pairs();
  if (paired_.version() != version_) {
    version_ = paired_.version();
    weights_.assign(pairs.size(), kNoWeight);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const RowPair& pair = pairs[i];
      if (!uses_[pair.tensor].is_weight) continue;
      weights_[i] = weight_steps_.place_of(pair.tensor, pair.rank,
                                           a_.tensors[pair.tensor].kind == kind::kParamUpdated);
    }
    scales_.set_pairs(pairs, a, scale_kinds_, modules_);
  }
  if (pairs.empty()) return;
  if (pair_count_ == 0) first_step_ = step;
  pair_count_ += static_cast<std::int64_t>(pairs.size());
  step_ = step;
  drift_ = drift(step - first_step_);
  scales_.measure(pairs, a, b);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const RowPair& pair = pairs[i];
    Look look{pair, a[pair.a], b[pair.b], uses_[pair.tensor]};
    WeightStep weight;
    if (weights_[i] != kNoWeight) {
      weight = weight_steps_.next(weights_[i], look.a.values, look.b.values);
    }
    note_whole_runs(look);
    look_at(i, look, weight);
  }
}

void Comparison::look_at(std::size_t number, Look& look, const WeightStep& weight) {
  if (has_other_form(look) || is_split_otherwise(look)) return;
  const Use& use = look.use;
  look.moved = weight.moved;
  if (use.is_of_module) look.weights_apart = weights_apart(look);
  const double scale = scales_.at(number);
  const auto differences =
      differences_of(look.a.values, look.b.values, weight, a_.resolution + b_.resolution, scale);
  if (use.is_gradient) {
    const double own = scales_.size_of(number);
    if (own > 0.0 && own < tolerance(look, Spread::single) * scale) noisy_[use.parameter] = 1;
  }
  std::optional<Found> found = not_finite(look);
  if (!found) {
    const Found furthest_stat = furthest(look, differences);
    if (furthest_stat.stat < kValueStats) found = furthest_stat;
  }
  if (use.is_weight) {
    double& owned = owned_[use.module];
    owned = std::max(owned, largest(relative_differences(look.a.values, look.b.values)));
  }
  if (found) {
    take(look, *found);
  } else if (without_value_++ == 0) {
    first_without_value_ = {step_, look.pair.tensor};
  }
}

// A batch that is split otherwise, among micro steps or ranks: only what is summed over it is the
// same.
bool Comparison::is_split_otherwise(const Look& look) {
  if (!known_.has_other_shares || !look.use.is_of_share) return false;
  const std::int32_t here = paired_.a().backwards, there = paired_.b().backwards;
  const bool has_other_world = a_.world_size != b_.world_size;
  if (here == there && !has_other_world) return false;
  if (!has_said_split_) {
    has_said_split_ = true;
    report_.remarks.push_back(
        "the batch is split otherwise (" +
        (has_other_world ? "ranks: " + std::to_string(a_.world_size) + " in A, " +
                               std::to_string(b_.world_size) + " in B"
                         : "backwards in step " + std::to_string(step_) + ": " +
                               std::to_string(here) + " in A, " + std::to_string(there) + " in B") +
        "): what belongs to a part of it is not compared");
  }
  return true;
}

bool Comparison::has_other_form(const Look& look) {
  const std::uint32_t number = look.pair.tensor;
  const ComparedTensor& tensor = a_.tensors[number];
  const ComparedTensor& other = b_.tensors[look.b.tensor];
  if (tensor.has_dtype && other.has_dtype && tensor.dtype != other.dtype &&
      said_dtype_[number] == 0) {
    said_dtype_[number] = 1;
    report_.different_dtype.push_back(tensor_text(tensor) + ": " +
                                      std::string(dtype_name(tensor.dtype)) + " and " +
                                      std::string(dtype_name(other.dtype)));
  }
  if (!has_other_size(look.a, look.b)) return false;
  if (said_size_[number] == 0) {
    said_size_[number] = 1;
    report_.different_size.push_back(
        tensor_text(tensor) + ": " + grouped(static_cast<std::int64_t>(look.a.values[kCount])) +
        " and " + grouped(static_cast<std::int64_t>(look.b.values[kCount])) + " elements");
  }
  return true;
}

// How far the weights are apart that an activation was computed with. These are the weights of
// its module, and of the module whose output it is, which is told by equal values.
double Comparison::weights_apart(const Look& look) {
  const double own = owned_[look.use.module];
  const ComparedValues& values = look.a.values;
  if (!look.use.is_activation || std::isnan(values[kNorm] + values[kMean] + values[kMax])) {
    return own;
  }
  if (step_ != outputs_step_) outputs_.clear();
  outputs_step_ = step_;
  if (own == 0.0 && outputs_.empty()) return own;
  double& known =
      outputs_[{look.pair.rank, look.pair.place, values[kNorm], values[kMean], values[kMax]}];
  return known = std::max(known, own);
}

double Comparison::tolerance(const Look& look, Spread spread) const {
  const ComparedTensor& tensor = a_.tensors[look.pair.tensor];
  const ComparedTensor& other = b_.tensors[look.b.tensor];
  double roundoff = std::max(tensor.has_dtype ? unit_roundoff(tensor.dtype) : 0.0,
                             other.has_dtype ? unit_roundoff(other.dtype) : 0.0);
  if (!tensor.has_dtype && !other.has_dtype) roundoff = unit_roundoff(DType::float32);
  // Whatever A computes in few bits, its gradients have no more of them. B does not count here:
  // that it computes in fewer bits would be a finding.
  if (!look.use.is_weight) roundoff = std::max(roundoff, known_.roundoff);
  const double size = look.a.values[kCount];
  const double rounding =
      rounding_level(spread, roundoff, std::isnan(size) ? 0 : static_cast<std::int64_t>(size));
  // A repeat may be quieter than another order of summation: it only ever widens.
  double allowed = rounding * drift_;
  if (null_ != nullptr) {
    allowed = std::max(allowed, noise_.at(look.pair.tensor, look.use.kind, spread));
  }
  if (look.use.is_weight) {
    // How much of a weight's movement may be made of rounding.
    const bool is_noise = look.use.is_bias || noisy_[look.use.parameter] != 0;
    allowed += (is_noise ? kNoiseShare : kNoisyShare) * look.moved;
  }
  if (look.use.is_of_module) allowed += kOwnWeights * look.weights_apart;
  return allowed * options_.factor;
}

// Where one run has numbers that the other has not: nothing tolerates that.
std::optional<Comparison::Found> Comparison::not_finite(const Look& look) const {
  const auto unequal = [&](std::size_t stat) {
    const double a = look.a.values[stat], b = look.b.values[stat];
    return !std::isnan(a) && !std::isnan(b) && a != b;
  };
  const auto infinite = [&](std::size_t stat) {
    Found out = found(look, stat);
    out.is_infinite = true;
    out.difference = out.ratio = kInf;
    return out;
  };
  for (const std::size_t stat : {kNans, kInfs}) {
    if (unequal(stat)) return infinite(stat);
  }
  // Sources without counts: an infinite value says the same.
  for (std::size_t stat = 0; stat < kValueStats; ++stat) {
    if (unequal(stat) &&
        (!std::isfinite(look.a.values[stat]) || !std::isfinite(look.b.values[stat]))) {
      return infinite(stat);
    }
  }
  return std::nullopt;
}

// Of a pair without a value the statistic is none of them.
Comparison::Found Comparison::furthest(const Look& look,
                                       const std::array<double, kValueStats>& differences) const {
  std::array<std::optional<double>, 2> allowed;  // by Spread, once it is asked for
  std::size_t furthest = kValueStats;
  double ratio = 0.0;
  for (std::size_t stat = 0; stat < kValueStats; ++stat) {
    if (std::isnan(differences[stat])) continue;
    double here = 0.0;
    if (differences[stat] != 0.0) {
      std::optional<double>& of_spread = allowed[static_cast<std::size_t>(spread_of(stat))];
      if (!of_spread) of_spread = tolerance(look, spread_of(stat));
      here = differences[stat] / *of_spread;
    }
    if (furthest < kValueStats && here <= ratio) continue;
    furthest = stat;
    ratio = here;
  }
  Found out = found(look, furthest);
  if (furthest == kValueStats) return out;
  out.difference = differences[furthest];
  out.ratio = ratio;
  return out;
}

Comparison::Found Comparison::found(const Look& look, std::size_t stat) const {
  Found out;
  out.step = step_;
  out.tensor = look.pair.tensor;
  out.attempt = look.a.attempt;
  out.micro_step = look.a.accum;
  out.call = look.a.call;
  out.rank = look.pair.rank;
  out.stat = stat;
  out.a = look.a.values[stat];
  out.b = look.b.values[stat];
  return out;
}

void Comparison::take(const Look& look, const Found& found) {
  ++report_.rows;
  report_.beyond += found.ratio > 1.0 ? 1 : 0;
  const auto with_tolerance = [&] {
    Found out = found;
    if (!out.is_infinite) out.tolerance = tolerance(look, spread_of(found.stat));
    return out;
  };
  if (found.ratio > 1.0 && !report_.first) report_.first = difference(with_tolerance());
  const auto [worst, is_new] = worst_.try_emplace(look.pair.tensor);
  if (is_new || found.ratio > worst->second.ratio) worst->second = with_tolerance();
  std::vector<Level>& levels = levels_[static_cast<std::size_t>(look.use.kind)];
  if (levels.empty() || levels.back().step != step_) {
    levels.push_back({step_, found.ratio, look.pair.tensor});
  } else if (found.ratio > levels.back().ratio || uses_[levels.back().tensor].is_nameless) {
    levels.back() = {step_, found.ratio, look.pair.tensor};
  }
}

}  // namespace trainmon
