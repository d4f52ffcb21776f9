// Beside an installed `trainmon` stands the `python` of the same environment; TRAINMON_PYTHON names
// another one.
#include "cli/python.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string_view>

#include "base/text.h"

namespace trainmon::cli {

namespace fs = std::filesystem;

namespace {

// An empty part of PYTHONPATH means the working directory; `PYTHONPATH=$PYTHONPATH:/x` makes one by
// accident. Python takes its own start-up modules from there, before any program can object.
void drop_empty_parts_of_path() {
  const char* const given = std::getenv("PYTHONPATH");
  if (given == nullptr) return;
  const std::string_view parts = given;
  std::string kept;
  for (std::size_t at = 0; at <= parts.size();) {
    const std::size_t end = std::min(parts.find(':', at), parts.size());
    if (end > at) kept += (kept.empty() ? "" : ":") + std::string(parts.substr(at, end - at));
    at = end + 1;
  }
  ::setenv("PYTHONPATH", kept.c_str(), 1);
}

}  // namespace

std::string safe_program(const std::string& program) {
  drop_empty_parts_of_path();
  return "import sys\nif sys.path[:1] == ['']: del sys.path[0]\n" + program;
}

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
  const std::string program = safe_program(
      "sys.argv[:1] = []\nimport runpy\n"
      "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n");
  std::vector<std::string> all = {python, "-c", program, module};
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
