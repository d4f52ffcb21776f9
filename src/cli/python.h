// Subcommands that are Python: what `python -m trainmon.<name>` does, by the interpreter beside
// this program, but without the working directory on its path.
#pragma once

#include <string>
#include <vector>

namespace trainmon::cli {

// The Python that belongs to this program, or what TRAINMON_PYTHON says.
std::string interpreter();

// The text of `program` for `python -c`, behind lines that take the working directory off the path:
// a trainmon.py that lies there is not run. (`-P` would do it, from Python 3.11 on.) Changes the
// environment: what is empty in PYTHONPATH is taken out, for it means the working directory.
std::string safe_program(const std::string& program);

// Becomes that process; returns only by throwing std::runtime_error, with what to install.
[[noreturn]] void run_python(const std::string& module, const std::vector<std::string>& arguments);

}  // namespace trainmon::cli
