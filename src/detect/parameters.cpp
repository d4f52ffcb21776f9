#include "detect/parameters.h"

#include <charconv>
#include <utility>

#include "model/kinds.h"

namespace trainmon::detect {
namespace {

// The element of a series of kind `update` is "class.group". -1 where it says no group.
std::int32_t group_of(std::string_view element) {
  const std::string_view digits = element.substr(element.rfind('.') + 1);
  std::int32_t group = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), group);
  return group;
}

bool is_floating_point(DType dtype) {
  return dtype <= DType::float8_e5m2;
}

// 0 of a whole tensor. A piece with another place has another number.
std::uint64_t part_of(const Series& series) {
  std::uint64_t part = 0;
  for (const Range& range : series.ranges) {
    part = mixed(part + static_cast<std::uint64_t>(range.begin));
    part = mixed(part + static_cast<std::uint64_t>(range.end));
  }
  return part;
}

}  // namespace

void Parameters::add(const Series& series) {
  Use& use = uses_.emplace_back();
  const int quantity = quantity_of(series.kind);
  if (series.kind == kind::kInput || series.kind == kind::kInputEntropy) {
    use.input = series.kind == kind::kInput ? Use::Input::tensor : Use::Input::entropy;
    use.chunk = series.chunk;
    use.element = series.element;
    use.is_replicated = series.replication != Replication::disjoint;
    use.is_independent = series.replication == Replication::independent;
    use.dtype = series.dtype;
    return;
  }
  if (series.kind == kind::kActv || series.kind == kind::kActvRecomputed) return add_output(series);
  if (is_canary(series.kind)) return add_canary(series);
  const bool is_update = quantity == static_cast<int>(Quantity::update);
  if (quantity < 0 || series.element.empty() == is_update) return;
  // A summand that the optimizer adds to those of other ranks within its step.
  const bool is_summand = series.replication == Replication::partial &&
                          quantity == static_cast<int>(Quantity::grad_reduced);
  if (is_summand) return;
  const auto [at, is_new] = known_.try_emplace({series.optimizer, series.chunk, series.name},
                                               static_cast<std::uint32_t>(tensors_.size()));
  if (is_new) {
    const bool is_buffer = quantity == static_cast<int>(Quantity::buffer);
    tensors_.push_back({series.name, series.chunk, series.optimizer, {}, is_buffer});
  }
  use.quantity = quantity;
  use.tensor = at->second;
  use.dtype = series.dtype;
  // What a step is computed of is compared over ranks itself.
  use.is_replicated = series.replication == Replication::identical && !is_update;
  use.is_independent = series.replication == Replication::independent;
  use.part = part_of(series);
  if (!is_update) return;
  use.group = group_of(series.element);
  // AdamW of PyTorch before 2.7 declares nothing that tells it from Adam.
  use.decays_apart = series.element.starts_with("AdamW.");
}

// A forward comes before its recomputation, and its series too.
void Parameters::add_output(const Series& series) {
  if (!series.element.starts_with("output")) return;
  Outputs& all = outputs_[{series.chunk, series.name, series.element}];
  const auto id = static_cast<SeriesId>(uses_.size() - 1);
  const bool is_recomputed = series.kind == kind::kActvRecomputed;
  if (!is_recomputed) all.first.push_back(id);
  if (is_recomputed && !all.tensor) {
    all.tensor = static_cast<std::uint32_t>(tensors_.size());
    tensors_.push_back({series.name, series.chunk, series.optimizer, series.element});
  }
  if (!all.tensor) return;
  const auto use = [&](SeriesId one, ModuleOutput::Of output) {
    uses_[one].output = output;
    uses_[one].tensor = *all.tensor;
  };
  for (const SeriesId one : all.first) use(one, ModuleOutput::Of::forward);
  if (is_recomputed) use(id, ModuleOutput::Of::recomputed);
}

void Parameters::add_canary(const Series& series) {
  const auto [at, is_new] =
      canaries_.try_emplace({series.kind, series.chunk, series.name, series.element},
                            static_cast<std::uint32_t>(tensors_.size()));
  if (is_new) tensors_.push_back({series.name, series.chunk, series.optimizer, series.element});
  Use& use = uses_.back();
  use.tensor = at->second;
  use.output = series.kind == kind::kCanaryActv ? ModuleOutput::Of::canary
                                                : ModuleOutput::Of::canary_gradient;
}

std::optional<Observation> Parameters::observe(SeriesId series, const RowState& state,
                                               std::uint32_t flags, double loss_scale,
                                               const RowCheck* check) const {
  const Use& use = uses_[series];
  if (use.quantity < 0) return std::nullopt;
  Observation one = detect::observe(state, flags, loss_scale, check);
  one.tensor = use.tensor;
  one.quantity = static_cast<Quantity>(use.quantity);
  one.dtype = use.dtype;
  one.is_replicated = use.is_replicated;
  one.part = use.part;
  one.is_independent = use.is_independent;
  one.group = use.group;
  one.decays_apart = use.decays_apart;
  return one;
}

std::optional<Input> Parameters::input(SeriesId series, const RowState& state,
                                       const RowCheck* check) const {
  const Use& use = uses_[series];
  if (use.input == Use::Input::none) return std::nullopt;
  Input one;
  one.chunk = use.chunk;
  one.element = use.element;
  one.is_of_whole_batch = !use.is_replicated;
  one.is_unrelated = use.is_independent;
  if (use.input == Use::Input::entropy) {
    one.entropy = state.sum;
    return one;
  }
  one.is_finite = (state.nans | state.pos_infs) == 0;
  if (check != nullptr) one.fingerprint = check->fingerprint;
  const Observation row = detect::observe(state, 0, 1.0);
  one.count = row.count;
  one.is_constant = derive(Stat::min, state) == derive(Stat::max, state);
  if (!is_floating_point(use.dtype) && row.count > 0.0) {
    one.limits = {derive(Stat::min, state), derive(Stat::max, state)};
  }
  if (is_floating_point(use.dtype) && row.is_finite && row.count > 0.0) {
    one.sizes = Sizes{row.count, row.norm(), row.sum / row.count, row.absmax};
  }
  return one;
}

std::optional<ModuleOutput> Parameters::output(SeriesId series, const RowState& state) const {
  const Use& use = uses_[series];
  if (!use.output || state.is_estimate()) return std::nullopt;
  ModuleOutput one;
  one.tensor = use.tensor;
  one.of = *use.output;
  const Observation row = detect::observe(state, 0, 1.0);
  one.digest = row.digest;
  one.norm = row.norm();
  one.sum = row.sum;
  one.count = row.count;
  return one;
}

void Parameters::add_of_module(StepEvidence& step, SeriesId series, const RowState& state,
                               const RowCheck* check, const Place& place) const {
  const auto add = [&](auto&& one) {
    one.rank = place.rank;
    one.accum = place.accum;
    one.call = place.call;
    one.seq = place.seq;
    step.add(std::forward<decltype(one)>(one));
  };
  if (auto output = this->output(series, state)) {
    add(*std::move(output));
  } else if (auto input = this->input(series, state, check)) {
    add(*std::move(input));
  }
}

}  // namespace trainmon::detect
