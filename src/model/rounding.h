// How numbers of a dtype are rounded.
#pragma once

#include "trainmon/tensor.h"

namespace trainmon {

// Unit round-off: half the distance from 1 to the next number. 0 for integers.
double unit_roundoff(DType dtype);
// The smallest normal number: below it a rounding is not relative.
double smallest_normal(DType dtype);

}  // namespace trainmon
