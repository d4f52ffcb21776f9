// Beside an installed `trainmon` stands the `python` of the same environment; TRAINMON_PYTHON names
// another one.
#include "cli/python.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string_view>

#include "base/text.h"

extern char** environ;

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

// As execvp() takes them.
std::vector<char*> pointers_to(std::vector<std::string>& arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::string cannot_start(const std::string& python) {
  return "this command is Python, and '" + printable(python) +
         "' cannot be started; TRAINMON_PYTHON names another one (it needs `pip install trainmon`)";
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

PythonProcess::PythonProcess(const std::string& program, const std::vector<std::string>& arguments,
                             bool errors) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw std::runtime_error("there is no pipe left");
  output_ = File(pipe[0]);
  const File writing(pipe[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writing.fd(), 1);
  if (!errors) ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  std::vector<std::string> all = {interpreter(), "-c", safe_program(program)};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers = pointers_to(all);
  const int failed =
      ::posix_spawnp(&child_, pointers[0], &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed == 0) return;
  child_ = 0;
  throw std::runtime_error(cannot_start(all[0]));
}

PythonProcess::~PythonProcess() {
  if (child_ == 0) return;
  ::kill(child_, SIGKILL);
  wait();
}

bool PythonProcess::wait() {
  int status = 0;
  while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) continue;
  child_ = 0;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::string module_program() {
  return "sys.argv[:1] = []\nimport runpy\n"
         "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n";
}

void run_python(const std::string& module, const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {interpreter(), "-c", safe_program(module_program()), module};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers = pointers_to(all);
  ::execvp(pointers[0], pointers.data());
  throw std::runtime_error(cannot_start(all[0]));
}

}  // namespace trainmon::cli
