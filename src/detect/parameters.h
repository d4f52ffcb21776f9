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
  bool has_use(SeriesId series) const { return uses_[series].quantity >= 0; }

 private:
  struct Use {
    int quantity = -1;
    std::uint32_t tensor = 0;
    DType dtype = DType::float32;
    bool is_replicated = false;
    std::int32_t group = -1;
    bool decays_apart = false;
  };
  std::vector<Use> uses_;  // by series
  std::vector<Tensor> tensors_;
  // optimizer, chunk, name -> place in tensors_
  std::map<std::tuple<std::int32_t, std::int32_t, std::string>, std::uint32_t> known_;
};

}  // namespace trainmon::detect
