// Subcommands that are Python: `python -m trainmon.<name>` of the interpreter beside this program.
#pragma once

#include <string>
#include <vector>

namespace trainmon::cli {

// The Python that belongs to this program, or what TRAINMON_PYTHON says.
std::string interpreter();

// Becomes that process; returns only by throwing std::runtime_error, with what to install.
[[noreturn]] void run_python(const std::string& module, const std::vector<std::string>& arguments);

}  // namespace trainmon::cli
