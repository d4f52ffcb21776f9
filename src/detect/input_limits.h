// Ids and sizes of inputs that were the same in each call, and then are others.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "detect/window.h"

namespace trainmon::detect {

// The largest id of each batch may be that of a mask, the smallest that of padding. A model that is
// not given it any more is given other data. So is one that a restart gives other sizes. Never
// certain, for a program may mean it. Says each once of an argument.
class InputLimits {
 public:
  void check(const Window& window, Findings& found);

 private:
  using Place = std::tuple<std::int32_t, std::int32_t, std::string>;  // rank, chunk, argument
  // How often a number was the same, and how often it then was another one.
  struct Constant {
    double value = 0.0;
    double other = 0.0;
    std::int64_t same = 0;
    std::int64_t others = 0;
    std::int64_t since = 0;
    bool is_said = false;
  };
  struct Argument {
    double count = -1.0;  // elements of the last call
    Constant smallest, largest;
    std::int64_t calls = 0;     // in a row with so many elements
    double before = -1.0;       // elements of the calls of the start before; -1: they differed
    std::int64_t of_start = 0;  // calls of this start with one number of elements; -1: they differ
    std::int64_t first_step = 0;
    bool is_said = false;
  };
  void begin_start();
  static bool has_changed(Constant& one, double value, std::int64_t step);

  std::map<Place, Argument> arguments_;
  std::vector<std::int32_t> ranks_;  // of the start
  std::int32_t restart_ = 0;
};

}  // namespace trainmon::detect
