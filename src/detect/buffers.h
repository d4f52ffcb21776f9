// Buffers of the model that change where nothing says that they may.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "detect/checks.h"

namespace trainmon::detect {

// A forward may change a buffer, and a framework may make those of ranks equal or leave them as
// they are. So it is their own past that tells what is usual: ranks that had the same, and a buffer
// that did not change. Never certain. Says each once of a buffer and start.
class Buffers {
 public:
  void check(const Window& window, Findings& found);

 private:
  struct OfTensor {
    std::int64_t alike = 0;  // steps in a row in which all ranks had the same
    bool is_said = false;
  };
  struct OfRank {
    std::int64_t still = 0;  // steps in a row in which it did not change
    bool is_said = false;
  };
  using Ranks = std::vector<const Observation*>;
  // Whether that was said, or would have been.
  bool check_ranks(const Window& window, const Ranks& ranks, Findings& found);
  void check_change(const Window& window, const Observation& one, bool is_told, Findings& found);

  std::map<std::uint32_t, OfTensor> tensors_;
  std::map<std::pair<std::int32_t, std::uint32_t>, OfRank> ranks_;  // rank, tensor
};

}  // namespace trainmon::detect
