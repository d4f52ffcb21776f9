// Subcommands that are Python: what `python -m trainmon.<name>` does, by the interpreter beside
// this program, but without the working directory on its path.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/file.h"

namespace trainmon::cli {

// The Python that belongs to this program, or what TRAINMON_PYTHON says.
std::string interpreter();

// The text of `program` for `python -c`, behind lines that take the working directory off the path:
// a trainmon.py that lies there is not run. (`-P` would do it, from Python 3.11 on.) Changes the
// environment: what is empty in PYTHONPATH is taken out, for it means the working directory.
std::string safe_program(const std::string& program);

// A Python process whose stdout is read here. `errors` false: its stderr goes nowhere.
class PythonProcess {
 public:
  // `program` with these arguments. Throws std::runtime_error where it cannot be started.
  PythonProcess(const std::string& program, const std::vector<std::string>& arguments, bool errors);
  ~PythonProcess();  // ends it, unless it was waited for
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  int output() const { return output_.fd(); }
  // Whether it exited with 0. Behind the end of its output.
  bool wait();

 private:
  File output_;
  pid_t child_ = 0;
};
// The text of a program that runs the module named by its first argument.
std::string module_program();

// Becomes that process; returns only by throwing std::runtime_error, with what to install.
[[noreturn]] void run_python(const std::string& module, const std::vector<std::string>& arguments);

}  // namespace trainmon::cli
