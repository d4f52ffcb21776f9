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
  bool has_use(SeriesId series) const {
    return uses_[series].quantity >= 0 || uses_[series].input != Use::Input::none;
  }

 private:
  struct Use {
    enum class Input : std::uint8_t { none, tensor, entropy };
    int quantity = -1;
    Input input = Input::none;
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
  std::vector<Use> uses_;  // by series
  std::vector<Tensor> tensors_;
  // optimizer, chunk, name -> place in tensors_
  std::map<std::tuple<std::int32_t, std::int32_t, std::string>, std::uint32_t> known_;
};

}  // namespace trainmon::detect
