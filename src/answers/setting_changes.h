// What the groups of optimizers say, shortly before a step.
#pragma once

#include <string>
#include <vector>

#include "trainmon/read.h"

namespace trainmon {

// A change this many steps before the first bad one, or nearer, is told. A rate that is too high
// takes a few steps until something overflows.
constexpr std::int64_t kStepsBefore = 10;

// Values that changed up to and including `step`, as "lr of group 0 changed from 0.1 to 100 at
// step 5". They are of this restart and rank (negative: of any), by optimizer, group and name.
// Groups that say the same share a sentence. `declared` by step, as RunRows has it.
std::vector<std::string> setting_changes(const std::vector<ReadDeclared>& declared,
                                         std::int32_t restart, std::int32_t rank,
                                         std::int64_t step);

// The same of some ranks, each once: what not all of them say begins with the rank that does.
std::vector<std::string> setting_changes(const std::vector<ReadDeclared>& declared,
                                         std::int32_t restart,
                                         const std::vector<std::int32_t>& ranks, std::int64_t step);

}  // namespace trainmon
