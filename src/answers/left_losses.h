// Which logged losses left their own histories. docs/detection.md defines it.
#pragma once

#include <string>
#include <vector>

#include "answers/left_lines.h"
#include "answers/shift.h"
#include "trainmon/read.h"

namespace trainmon {

struct LeftLossLines {
  std::string name;
  std::vector<LeftLines::Left> lines;  // of ranks
};

// By name, those that left. Where one rank's did, those of other ranks are looked at in that step.
std::vector<LeftLossLines> left_losses(const std::vector<ReadScalar>& scalars);

// Of numbers that are values in this unit, or else, with 0, logarithms.
LeftLines::Left left_of(const Shift& shift, double unit);

}  // namespace trainmon
