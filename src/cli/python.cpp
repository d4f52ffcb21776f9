// Beside an installed `trainmon` stands the `python` of the same environment; TRAINMON_PYTHON names
// another one.
#include "cli/python.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "base/text.h"

namespace trainmon::cli {

namespace fs = std::filesystem;

std::string interpreter() {
  if (const char* named = std::getenv("TRAINMON_PYTHON"); named != nullptr && *named != '\0') {
    return named;
  }
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  for (const char* name : {"python3", "python"}) {
    const fs::path beside = self.parent_path() / name;
    if (!error && fs::exists(beside, error)) return beside.native();
  }
  return "python3";  // of the PATH
}

void run_python(const std::string& module, const std::vector<std::string>& arguments) {
  const std::string python = interpreter();
  std::vector<std::string> all = {python, "-m", module};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& argument : all) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::execvp(python.c_str(), pointers.data());
  throw std::runtime_error("this command is Python, and '" + printable(python) +
                           "' cannot be started; TRAINMON_PYTHON names another one (it needs "
                           "`pip install trainmon`)");
}

}  // namespace trainmon::cli
