// Models that are not trained any more, though gradients and steps go on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "detect/window.h"

namespace trainmon::detect {

// Four ways in which that happens. The model stays in evaluation mode after a validation. Its
// parameters were replaced, and optimizers step the old ones. No parameter has a gradient any more
// when the optimizer steps. The learning rate of a group has become 0. Never certain, for a program
// may mean it. Says each once a start.
class Untrained {
 public:
  void check(const Window& window, Findings& found);

 private:
  struct Forwards {
    int with = 0;                            // steps in a row that had one
    int without = 0;                         // steps in a row, after those
    int evaluated = 0;                       // of these, with a forward in evaluation mode
    std::set<std::int32_t> optimizers = {};  // with gradients in these
    std::int64_t since = 0;
    bool is_said = false;
  };
  struct Stepped {
    bool has_formula = false;  // the optimizer took a step of it
    bool has_state = false;    // and keeps a moment of it
    int still = 0;             // steps in a row, after those
    std::int64_t since = 0;
    std::optional<Observation> left = {};  // the weight in the last of these
    bool is_said = false;
  };
  struct Gradients {
    int with = 0;     // steps in a row that had one
    int without = 0;  // steps in a row, after those, whose weights stay
    std::int64_t since = 0;
    std::optional<Observation> last = {};  // one of the last step that had one
    bool is_said = false;
  };
  struct Rate {
    double last = 0.0;  // that was not 0
    int zero = 0;       // steps in a row, after those
    std::int64_t since = 0;
    bool is_said = false;
  };
  using Place = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // rank, optimizer, group

  void check_forwards(const Window& window, Findings& found);
  void check_steps(const Window& window, std::int32_t rank, Findings& found);
  void check_gradients(const Window& window, std::int32_t rank, Findings& found);
  void check_rates(const Window& window, Findings& found);

  std::map<std::pair<std::int32_t, std::int32_t>, Forwards> forwards_;  // rank, chunk
  std::map<std::pair<std::int32_t, std::uint32_t>, Stepped> stepped_;   // rank, tensor
  std::map<std::int32_t, Gradients> gradients_;                         // by rank
  std::map<Place, Rate> rates_;
};

}  // namespace trainmon::detect
