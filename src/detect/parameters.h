// The parameters of a run, and what each series is to the checks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "detect/evidence.h"

namespace trainmon::detect {

// Grows as series come. One thread.
class Parameters {
 public:
  // To be called for every series, in ascending order of their ids.
  void add(const Series& series);
  std::size_t series() const { return uses_.size(); }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // As observe() of evidence.h; of a series that was added. Rank, attempt, accum and seq are the
  // caller's to say. nullopt where no check looks at the kind.
  std::optional<Observation> observe(SeriesId series, const RowState& state, std::uint32_t flags,
                                     double loss_scale, const RowCheck* check) const;
  // The same of what the whole model is given; nullopt for other kinds.
  std::optional<Input> input(SeriesId series, const RowState& state, const RowCheck* check) const;
  // The same of what a module returns, where it was recomputed once, and of canaries; call and seq
  // are the caller's, too. nullopt for other kinds, and of rows that are estimates.
  std::optional<ModuleOutput> output(SeriesId series, const RowState& state) const;
  // Adds one of these to a step, if it is any.
  struct Place {
    std::int32_t rank, accum, call;
    std::uint64_t seq;
  };
  void add_of_module(StepEvidence& step, SeriesId series, const RowState& state,
                     const RowCheck* check, const Place& place) const;
  bool is_of_module(SeriesId series) const {
    return uses_[series].input != Use::Input::none || uses_[series].output.has_value();
  }
  bool has_use(SeriesId series) const {
    return uses_[series].quantity >= 0 || is_of_module(series);
  }

 private:
  struct Use {
    enum class Input : std::uint8_t { none, tensor, entropy };
    int quantity = -1;
    Input input = Input::none;
    std::optional<ModuleOutput::Of> output = {};
    std::int32_t chunk = 0;  // of an input, as `element`
    std::string element;
    std::uint32_t tensor = 0;
    DType dtype = DType::float32;
    bool is_replicated = false;
    std::uint64_t part = 0;
    bool is_independent = false;
    std::int32_t group = -1;
    bool decays_apart = false;
  };
  void add_output(const Series& series);
  void add_canary(const Series& series);

  std::vector<Use> uses_;  // by series
  std::vector<Tensor> tensors_;
  // optimizer, chunk, name -> place in tensors_
  std::map<std::tuple<std::int32_t, std::int32_t, std::string>, std::uint32_t> known_;
  // What modules return, by chunk, name, element.
  struct Outputs {
    std::vector<SeriesId> first;               // of the forward
    std::optional<std::uint32_t> tensor = {};  // once it was recomputed
  };
  std::map<std::tuple<std::int32_t, std::string, std::string>, Outputs> outputs_;
  // Of canaries, by kind, chunk, name, element. Their dtype may become another.
  std::map<std::tuple<std::string, std::int32_t, std::string, std::string>, std::uint32_t>
      canaries_;
};

}  // namespace trainmon::detect
