// How evenly the ids of a tensor are spread over those that occur in it.
#pragma once

#include <optional>

#include "trainmon/tensor.h"

namespace trainmon {

// The entropy of the histogram of the elements, in bits: 0 where all are equal, log2(n) where n
// elements all differ. Expanded elements count as often as they appear. nullopt for what holds no
// ids: an empty tensor, floats, bool, integers of 8 bits, and ids that are further apart than 2^20.
// Any layout, any thread; memory is that of 4 bytes an id. Throws std::invalid_argument when the
// tensor is not on the CPU.
std::optional<double> token_entropy(const TensorView& tensor);

}  // namespace trainmon
