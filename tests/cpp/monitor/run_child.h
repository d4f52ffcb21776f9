// Starts calls_child with a library preloaded that records calls, and makes some fail.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "file_content.h"

namespace trainmon {

struct Fault {
  std::string how;
  long first = 0;
  long size = 0;

  std::string text() const {
    return how + " from call " + std::to_string(first) + (size > 1 ? " on" : "");
  }
};

struct Ended {
  int status = -1;
  bool has_hung = false;
  std::string output;
  std::vector<std::string> record;  // a line for each call, as failing_calls.cpp says
};

// Runs calls_child in `folder`/run, its calls there failing as `fault` says, or none of size 0.
inline Ended run_child(const std::filesystem::path& folder, const Fault& fault, int steps,
                       const std::string& fsync = "never") {
  constexpr auto kHangs = std::chrono::seconds(60);
  const std::filesystem::path run = folder / "run", output = folder / "output",
                              record = folder / "record";
  const pid_t child = fork();
  if (child == 0) {
    const int out = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(out, STDOUT_FILENO);
    ::setenv("LD_PRELOAD", FAILING_CALLS, 1);
    ::setenv("FAILING_UNDER", run.c_str(), 1);
    ::setenv("FAILING_RECORD", record.c_str(), 1);
    ::setenv("FAILING_FIRST", std::to_string(fault.first).c_str(), 1);
    ::setenv("FAILING_SIZE", std::to_string(fault.size).c_str(), 1);
    ::setenv("FAILING_HOW", fault.how.c_str(), 1);
    const std::string count = std::to_string(steps);
    ::execl(CALLS_CHILD, CALLS_CHILD, run.c_str(), count.c_str(), fsync.c_str(), nullptr);
    ::_exit(127);
  }
  Ended ended;
  const auto begin = std::chrono::steady_clock::now();
  while (::waitpid(child, &ended.status, WNOHANG) == 0) {
    if (!ended.has_hung && std::chrono::steady_clock::now() - begin > kHangs) {
      ended.has_hung = true;
      ::kill(child, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ended.output = content(output);
  std::istringstream calls(content(record));
  for (std::string line; std::getline(calls, line);) ended.record.push_back(line);
  return ended;
}

}  // namespace trainmon
