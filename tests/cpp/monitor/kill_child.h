// Starts the kill loop's child and kills it.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
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

// How a sink is killed in the middle of a write: by which failpoint, and at which of its hits.
struct TornWrite {
  const char* site;
  unsigned first_hit;
  unsigned hits;

  // As failpoints are told: part of a write, then death.
  std::string spec(std::mt19937& random) const {
    const unsigned hit = first_hit + static_cast<unsigned>(random() % hits);
    return std::string(site) + "=short:" + std::to_string(1 + random() % 400) + "@" +
           std::to_string(hit) + ";" + site + "=kill@" + std::to_string(hit + 1);
  }
};

// TRAINMON_KILLS, or what is usual.
inline int wanted_kills(int usual) {
  const char* wanted = std::getenv("TRAINMON_KILLS");
  return wanted != nullptr ? std::atoi(wanted) : usual;
}

// Kills children that write to `sink`, TRAINMON_KILLS of them (40 unless set) and, where the
// machine is so slow that the kills come before the rows, more, each living longer. `rows_of` looks
// at what one left, reports what is wrong with it, and gives the number of rows in it.
inline void kill_often(const std::filesystem::path& scratch, const std::string& sink,
                       const TornWrite& torn_write,
                       const std::function<std::uint64_t(const std::filesystem::path&)>& rows_of) {
  constexpr double kFlushSeconds = 0.05;
  const int kills = wanted_kills(40);
  ASSERT_GT(kills, 0);
  const unsigned seed = std::random_device{}();
  std::printf("%d kills, seed %u\n", kills, seed);
  std::mt19937 random(seed);
  unsigned longest_us = 250000;
  int done = 0, with_rows = 0, with_bound = 0;
  const auto is_enough = [&] { return with_rows * 3 >= done && with_bound * 5 > done; };
  for (; done < kills || (!is_enough() && done < 4 * kills); ++done) {
    if (done >= kills && done % 10 == 0) longest_us += longest_us / 2;
    const std::filesystem::path run = scratch / std::to_string(done);
    const auto life = std::chrono::microseconds(15000 + random() % longest_us);
    // Every third child dies between two parts of one write.
    std::string torn;
    if (done % 3 == 2) torn = torn_write.spec(random);
    const Kill killed =
        start_and_kill(run, life, torn.empty() ? nullptr : torn.c_str(), kFlushSeconds, sink);
    const std::uint64_t rows = std::filesystem::exists(run) ? rows_of(run) : 0;
    with_rows += rows > 0;
    // How long a flush takes is the machine's affair. That no more than an interval is lost, the
    // kill loop of the log asserts: the same pipe flushes these sinks.
    std::uint64_t flushed = 0;
    for (const KillReport& report : killed.reports) flushed = std::max(flushed, report.flushed);
    with_bound += flushed > 0;
    EXPECT_GE(rows, flushed) << "flushed, yet lost";
    std::filesystem::remove_all(run);
  }
  std::printf("%d of %d kills with rows, %d with a bound\n", with_rows, done, with_bound);
  EXPECT_TRUE(is_enough());
}

}  // namespace trainmon
