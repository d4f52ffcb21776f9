// Learning rates and other values of optimizers' groups: from which step on two runs differ in
// them.
#pragma once

#include <vector>

#include "compare/compare.h"
#include "compare/compared_run.h"

namespace trainmon {

// Each value once, at the first step of both runs in which it differs; by step. Of a run that has
// none recorded nothing is said.
std::vector<DeclaredDifference> declared_differences(const ComparedRun& a, const ComparedRun& b);

}  // namespace trainmon
