// Declared values as readers give them: in order, and those that hold in the steps asked for.
#pragma once

#include <vector>

#include "read/restarts.h"
#include "trainmon/read.h"

namespace trainmon {

// By step, restart and rank; equal ones as they were. A value of a step that a newer start went
// through again gets the first later step that it did not. It goes where there is none. Those after
// the last step asked for go. Of those before the first, which may hold in it, the last of
// each stays.
void order_declared(std::vector<ReadDeclared>& declared, const Restarts& restarts,
                    const ReadOptions& options);

}  // namespace trainmon
