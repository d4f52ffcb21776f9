// Canaries: the same batch goes through a twin of the model that has always the same weights.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "detect/window.h"

namespace trainmon::detect {

// What a canary gives is the same as ever, while nobody changes what the model computes. The first
// module that returns something else tells where it did. Where all do as ever, the backward has
// changed, between two parameters of which the gradient of one is as ever. Not certain: a setting
// of a model may change by a schedule. Of a line that is not the same by itself, as where a device
// adds in any order, nothing is said. It says one thing of each rank and start.
class Canaries {
 public:
  static constexpr std::int64_t kAlike = 8;  // canaries before, which were the same
  // Of the norm, and of a sum over its size: what another number of threads makes of it is smaller.
  static constexpr double kLeast = 2e-6;

  void check(const Window& window, Findings& found);

 private:
  struct Line {
    ModuleOutput last;
    std::int64_t step = 0;  // of `last`
    std::int64_t alike = 0;
  };
  // Rank, tensor, call.
  using Place = std::tuple<std::int32_t, std::uint32_t, std::int32_t>;
  // Of one rank and step, in the order of execution.
  struct Changed {
    std::vector<ModuleOutput> outputs, gradients;
    std::int64_t since = 0;                 // the step of the newest that was as ever
    const ModuleOutput* as_ever = nullptr;  // the gradient before the first of these
  };
  static bool is_other(const ModuleOutput& a, const ModuleOutput& b);
  void take(const ModuleOutput& one, std::int64_t step, Changed& changed, Findings& found);
  void say(const Window& window, std::int32_t rank, const Changed& changed, Findings& found);

  std::map<Place, Line> lines_;
  std::set<std::int32_t> said_;  // ranks
};

}  // namespace trainmon::detect
