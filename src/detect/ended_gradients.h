// Gradients that end while those of other tensors go on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "detect/window.h"

namespace trainmon::detect {

// A tensor that was frozen, or from which nothing leads to the loss any more, has no row. Never
// certain, for a program may mean it. A start goes on with what the one before had.
class EndedGradients {
 public:
  void check(const Window& window);
  // What has no gradient when the record ends. One that came back was frozen for a while.
  void end(const std::vector<Tensor>& tensors, Findings& found) const;

 private:
  using Place = std::pair<std::int32_t, std::int64_t>;  // restart, step
  // Of a tensor on one rank. Optimizers may take different numbers of steps, and an expert may have
  // a gradient now and then. So times are those of the rank's rows (seq).
  struct Line {
    std::int64_t rows = 0;
    std::int64_t step = -1;                  // of the last row of this start
    std::optional<std::uint64_t> last = {};  // of the last row; at first that of the start
    std::uint64_t longest = 0;               // between two rows
    std::optional<Place> since = {};         // the step that first lacked a row
    bool is_away = false;                    // for longer than ever
    bool is_announced = false;               // as an edit
    bool is_of_before = false;               // an earlier start had rows of it
  };
  struct Rank {
    std::vector<Line> lines;  // by tensor
    bool is_lossy = false;    // some rows were lost
    bool goes_on = true;      // this start has a row of a tensor of the start before
  };
  // Of a step of a rank: the last row of each optimizer.
  using Times = std::map<std::int32_t, std::uint64_t>;
  void begin_start(const Window& window);
  void check_rank(const Window& window, std::int32_t number, const Times& times);

  std::map<std::int32_t, Rank> ranks_;
  std::vector<std::int32_t> numbers_;  // of ranks of the start
  std::optional<std::int32_t> restart_ = {};
};

}  // namespace trainmon::detect
