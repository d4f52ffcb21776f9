// Declared values as readers give them: in order, and those that hold in the steps asked for.
#pragma once

#include <vector>

#include "trainmon/read.h"

namespace trainmon {

// By step, restart and rank; equal ones as they were. Those after the last step asked for go. Of
// those before the first, which may hold in it, the last of each stays.
void order_declared(std::vector<ReadDeclared>& declared, const ReadOptions& options);

}  // namespace trainmon
