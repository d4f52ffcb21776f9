// Buffers of the model that change where nothing says that they may.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "detect/steady_change.h"
#include "detect/window.h"

namespace trainmon::detect {

// A forward may change a buffer, and a framework may make those of ranks equal or leave them as
// they are. So it is their own past that tells what is usual. Ranks had the same, or a buffer did
// not change, or it did in each step. Never certain. Says each once of a buffer.
class Buffers {
 public:
  void check(const Window& window, Findings& found);
  // Another start: it may change others, and those that changed in each step should go on.
  void begin();

 private:
  struct OfTensor {
    std::int64_t alike = 0;  // steps in a row in which all ranks had the same
    bool is_said = false;
  };
  struct OfRank {
    SteadyChange changes;
    bool is_said = false;
    bool has_ended = false;
  };
  // Those that are found not to change any more, by the first such step and the rank.
  using Ended = std::map<std::pair<std::int64_t, std::int32_t>, std::vector<std::uint32_t>>;
  using Ranks = std::vector<const Observation*>;
  // Whether that was said, or would have been.
  bool check_ranks(const Window& window, const Ranks& ranks, Findings& found);
  void check_change(const Window& window, const Observation& one, bool is_told, Ended& ended,
                    Findings& found);
  static void report(const Window& window, const Ended& ended, Findings& found);

  std::map<std::uint32_t, OfTensor> tensors_;
  std::map<std::pair<std::int32_t, std::uint32_t>, OfRank> ranks_;  // rank, tensor
};

}  // namespace trainmon::detect
