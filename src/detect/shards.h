// A tensor that ranks hold in shards, as one. Sums and sketches are linear and follow the index in
// the whole tensor, so those of shards add up to those of the whole.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "detect/evidence.h"

namespace trainmon::detect {

struct Gathered {
  Observation whole;                  // without a fingerprint; its rank is the first of `holders`
  std::vector<std::int32_t> holders;  // of shards that are not empty, ascending
};
// `shards` are of one tensor of `count` elements and one quantity, of all ranks, ascending. nullopt
// unless they are all of its parts, each there once, and finite: replicas of shards are none.
std::optional<Gathered> gathered(const std::vector<const Observation*>& shards, double count);

}  // namespace trainmon::detect
