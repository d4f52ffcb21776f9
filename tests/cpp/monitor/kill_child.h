// Starts the kill loop's child and kills it.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "kill_report.h"

namespace trainmon {

struct Kill {
  std::int64_t time_ns = 0;
  std::vector<KillReport> reports;
  bool by_us = false;  // the child was still producing
};

// Lets the child run for a while and kills it; or lets a failpoint kill it in the middle of a
// write.
inline Kill start_and_kill(const std::filesystem::path& run, std::chrono::microseconds life,
                           const char* failpoints, double flush_seconds,
                           const std::string& sink = "log") {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    if (failpoints != nullptr) setenv("TRAINMON_FAILPOINTS_SPEC", failpoints, 1);
    const std::string fd = std::to_string(ends[1]);
    const std::string flush = std::to_string(flush_seconds);
    execl(KILL_CHILD, KILL_CHILD, run.c_str(), fd.c_str(), flush.c_str(), sink.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  Kill kill_record;
  // Reports are drained while the child lives: a full pipe would stop it.
  std::thread drain([&] {
    KillReport report;
    while (read(ends[0], &report, sizeof report) == sizeof report) {
      kill_record.reports.push_back(report);
    }
  });
  std::this_thread::sleep_for(life);
  kill_record.time_ns = monotonic_ns();
  ::kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  drain.join();
  close(ends[0]);
  kill_record.by_us = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(kill_record.by_us) << "child ended by itself, status " << status;
  return kill_record;
}

}  // namespace trainmon
