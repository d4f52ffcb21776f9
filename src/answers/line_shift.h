// A change of a line, and of which of its numbers it is.
#pragma once

#include <cstdint>

#include "answers/shift.h"

namespace trainmon {

// What of a line left its history.
enum class Measure : std::uint8_t {
  norm,
  mean,     // over the root mean square
  zeros,    // their share
  balance,  // the mean over the root mean square, where it was 0 but for rounding
  largest,  // of ids
  // What is no matter of size.
  rows,     // it has no more
  still,    // the norm, which does not change any more
  dtype,    // its number
  sum,      // over that of the gradients of its module's output
  repeats,  // the correlation with what an input was so many steps before
  given,    // the mean of ids or the size of another input, over ranks and many steps
  // Beside its trend, as trend_jump.h has it.
  jump,  // its root mean square, or that over another line
  jump_of_zeros,
};

// Of a number of a line, with its series.
struct LineShift {
  Shift shift;
  std::uint32_t series;
  Measure measure;
  bool is_spread = false;  // not the measure itself, but its standard deviation
};

}  // namespace trainmon
