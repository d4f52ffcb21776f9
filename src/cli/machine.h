// What trainmon doctor says of the machine.
#pragma once

#include <string>

#include "cli/commands.h"

namespace trainmon::cli {

// Prints versions, instruction set, limits, and whether a run can be written in the working
// directory; checks `config_file` unless it is empty. kFindings when something is in the way.
void inspect_machine(const std::string& config_file, Context& context);

}  // namespace trainmon::cli
